"""Imports GGUF files as a pack: checks first, then each model, then the manifest.

If llama.cpp is installed, each file is opened with it, and its tokenization is compared.
"""

from dataclasses import replace
from pathlib import Path

from edgedecode.drafters.foreign_model import check_keeps_text
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.library.facts import not_on_kernels
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.new_folder import check_place, new_folder

from ..gguf.pretokenizers import splits_of
from ..gguf.tokenizer_check import compare_reading
from ..pack_texts import TEMPLATE, TOKENIZER
from ..stages import Stages
from .gguf_source import GgufSource, open_gguf_source, read_gguf_generation, read_gguf_template, read_widths
from .gguf_tokenizer import ImportedTokenizer, read_tokenizer
from .gguf_vocabulary import first_difference
from .imported_pack import Imported, ImportRequest, place_file, write_imported

_FILE = "model.gguf"
OWN_TOKENIZER = f"draft/{TOKENIZER}"
"""A draft's, where it is not the target's."""


def import_gguf_pair(request: ImportRequest, stages: Stages) -> Manifest:
    """Import a pair or a single target. Raises ExportError or IncompatiblePair, after removing all it has written."""
    with stages.stage("check"):
        check_place(request.out, nbytes=0)
        sources = {role: open_gguf_source(path) for role, path in request.paths.items()}
        target, draft = sources["target"], sources.get("draft")
        tokenizer = read_tokenizer(target, folder=request.target.absolute().parent)
        foreign = draft is not None and first_difference(target.vocabulary, draft.vocabulary) is not None
        read = {"target": tokenizer, "draft": tokenizer}
        if draft is not None and foreign:
            read["draft"] = read_tokenizer(draft, folder=request.paths["draft"].absolute().parent)
            check_keeps_text(read["draft"].opened())
        opened, generation = tokenizer.opened(), read_gguf_generation(target)
        template = read_gguf_template(target, generation)
        copied = sum(source.path.stat().st_size for source in sources.values()) if request.copy else 0
        check_place(request.out, nbytes=copied)
    with new_folder(request.out) as folder:
        (folder / TOKENIZER).write_text(tokenizer.text, encoding="utf-8")
        if template is not None:
            (folder / TEMPLATE).write_text(template.source, encoding="utf-8")
        if foreign:
            (folder / OWN_TOKENIZER).parent.mkdir(exist_ok=True)
            (folder / OWN_TOKENIZER).write_text(read["draft"].text, encoding="utf-8")
        models = {
            role: _import_model(role, source, request, read[role], folder, stages) for role, source in sources.items()
        }
        if foreign:
            entry = replace(models["draft"].entry, own_tokenizer=OWN_TOKENIZER)
            models["draft"] = replace(models["draft"], entry=entry)
        with stages.stage("digests"):
            return write_imported(request, folder, models, tokenizer=opened, template=template, generation=generation)


def _import_model(
    role: str, source: GgufSource, request: ImportRequest, tokenizer: ImportedTokenizer, folder: Path, stages: Stages
) -> Imported:
    """Copy or reference a model's file and check it with llama.cpp, if that is available."""
    file = f"{role}/{_FILE if request.copy else source.path.name}"
    entry = file_entry(source, file, license=request.license)
    if role == "target":
        entry = replace(entry, notes=(tokenizer.note,))
    with stages.stage(f"{role}: weights", source.path.stat().st_size) as advance:
        outside = place_file(source.path, folder / file, copy=request.copy, progress=advance)
    if not request.checked:
        return Imported(entry, outside)
    if note := not_on_kernels(replace(entry, gguf=source.path.name), source.path.parent):
        entry = replace(entry, notes=(*entry.notes, note))
    if (fault := engine_fault()) is not None:
        note = f"the file was not checked with llama.cpp: {fault}"
        return Imported(replace(entry, notes=(*entry.notes, note)), outside)
    with stages.stage(f"{role}: check with llama.cpp"):
        splits = splits_of(source.vocabulary.pre)
        try:
            form = splits.normal_form if splits is not None else ""
            reading = compare_reading(source.path, tokenizer.inner(), normal_form=form)
        except ExportError as error:
            raise ExportError(f"{source.name} cannot be used: {error}") from None
        entry = replace(entry, notes=(*entry.notes, *reading.notes), parity=reading.measured)
    return Imported(entry, outside)


def file_entry(source: GgufSource, file: str, *, license: str | None) -> ModelEntry:
    """Return the entry of a model that runs from its GGUF file, `file` in the pack."""
    header, widths = source.header, read_widths(source.contents.tensors)
    return ModelEntry(
        architecture=header.architecture,
        rows=header.rows,
        context=header.context,
        hidden_size=header.hidden_size,
        layers=header.layers,
        kv_heads=max(1, header.kv_heads),  # recurrent layers have none
        head_size=max(1, header.head_size),
        parameters=widths.parameters,
        weights=file,
        graphs={},
        bits=widths.bits,
        block_size=widths.block_size,
        head_bits=widths.head_bits,
        license=license or source.license,
        source=source.name,
        window=header.window,
        quantization=widths.quantization,
        gguf=file,
    )


_RUNTIME = "llama"


def engine_fault() -> str | None:
    """Return why llama.cpp cannot be used, or None if it can. A child process tries it."""
    try:
        device = next(iter(find_runtime(_RUNTIME).devices()))
    except RuntimeUnavailable as error:
        return str(error)
    return None if device.available else device.reason
