"""Imports folders with ONNX graphs as a pack: checks first, then each model, then the manifest."""

from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Generation, Manifest, ModelEntry
from edgedecode.pack.new_folder import check_place, new_folder
from edgedecode.text.chat_template import ChatTemplate

from ..checks.model_checks import CheckTexts
from ..graph.drawing import EXACT_FILE, GRAPH_FILE, WEIGHTS_FILE, graph_entry, write_exact
from ..graph.graph_request import LEAST_CONTEXT
from ..pack_texts import check_tokenizers, copy_licenses, copy_texts, open_template, read_generation
from ..stages import Stages
from .foreign_graphs import check_builder_graph, check_operators, context_limit, rewrite_builder_graph
from .imported_pack import Imported, ImportRequest, WeightWidths, place_file, write_imported
from .onnx_source import OnnxSource, open_onnx_source, rename_weights
from .reference_graph import OriginalGraph, check_import
from .weight_widths import read_widths


def import_pair(request: ImportRequest, stages: Stages) -> Manifest:
    """Import a pair or a single target. Raises ExportError or IncompatiblePair, after removing all it has written."""
    with stages.stage("check"):
        check_place(request.out, nbytes=0)
        sources = {role: open_onnx_source(path) for role, path in request.paths.items()}
        target = sources["target"]
        check_tokenizers(target, sources.get("draft", target))
        generation = read_generation(target, otherwise=target.search)
        template = open_template(target.folder, generation, name=target.name)
        jobs = [
            _job(role, source, request=request, template=template, generation=generation)
            for role, source in sources.items()
        ]
        check_place(request.out, nbytes=sum(job.nbytes for job in jobs))
    with new_folder(request.out) as folder:
        copy_texts(target.folder, folder, template=template)
        models = {job.role: import_model(job, pack=folder, stages=stages) for job in jobs}
        for job in jobs:
            copy_licenses(job.source.folder, folder, role=job.role)
        with stages.stage("digests"):
            return write_imported(
                request, folder, models, tokenizer=target.tokenizer, template=template, generation=generation
            )


def _job(
    role: str, source: OnnxSource, *, request: ImportRequest, template: ChatTemplate | None, generation: Generation
) -> "ImportJob":
    check_operators(source)
    context, notes = context_limit(source)
    if context < LEAST_CONTEXT:
        raise ExportError(
            f"{source.name} has a context of {context} tokens: at least {LEAST_CONTEXT} are needed to check it"
        )
    texts = CheckTexts.of(source.tokenizer, template=template, ends=generation.end_token_ids, context=context)
    return ImportJob(role, source, request, texts, context, notes)


@dataclass(frozen=True, slots=True)
class ImportJob:
    """A model to import in a role; `context` is its usable one, `notes` say why it is shorter than declared."""

    role: str
    source: OnnxSource
    request: ImportRequest
    texts: CheckTexts
    context: int
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Approximate size in the pack."""
        weights = self.source.weights.stat().st_size if self.request.copy else 0
        return self.source.graph.stat().st_size + weights


def import_model(job: ImportJob, *, pack: Path, stages: Stages) -> Imported:
    """Write the model's graph into the role's folder of `pack`, copy or reference its weights, and check the result.

    Raises ExportError if the graph cannot be rewritten or a check fails.
    """
    folder = pack / job.role
    folder.mkdir()
    source = job.source
    with stages.stage(f"{job.role}: structure"):
        check_builder_graph(source)
        widths = read_widths(source.model, name=source.name)
        original = OriginalGraph(source)
        early = widths.bits == widths.head_bits == 8 or job.role == "draft"  # at the same place as `export` does
        head_size = source.config.decoder.head_size
        rewrite_builder_graph(source.model, head_size=head_size, early_rows=early, name=source.name)
        entry = _entry(job, widths)
    with stages.stage(f"{job.role}: weights", source.weights.stat().st_size) as advance:
        copy = job.request.copy
        place = folder / (WEIGHTS_FILE if copy else source.weights.name)
        outside = place_file(source.weights, place, copy=copy, progress=advance)
        if copy:
            rename_weights(source.model, place)
        ir.save(source.model, folder / GRAPH_FILE)
        imported = Imported(replace(entry, weights=f"{job.role}/{place.name}"), outside)
    with stages.stage(f"{job.role}: parity"):
        write_exact(source.model, folder / EXACT_FILE)
        exact = f"{job.role}/{EXACT_FILE}"
        parity = check_import(imported.located, pack, exact=exact, original=original, texts=job.texts)
        (folder / EXACT_FILE).unlink()
    return replace(imported, entry=replace(imported.entry, parity=parity))


def _entry(job: ImportJob, widths: WeightWidths) -> ModelEntry:
    """Return the model's manifest entry; its weights file is set later."""
    decoder = job.source.config.decoder
    return ModelEntry(
        architecture=job.source.config.type,
        rows=job.source.rows,
        context=job.context,
        hidden_size=decoder.hidden_size,
        layers=decoder.num_hidden_layers,
        kv_heads=decoder.num_key_value_heads,
        head_size=decoder.head_size,
        parameters=widths.parameters,
        weights="",
        graphs={"base": graph_entry(job.source.model, f"{job.role}/{GRAPH_FILE}")},
        bits=widths.bits,
        block_size=widths.block_size,
        head_bits=widths.head_bits,
        license=job.request.license or job.source.license,
        source=job.source.name,
        quantization=widths.quantization,
        notes=job.notes,
    )
