"""A pair becomes a pack: refusals first, then each model, then the manifest; the folder appears whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import edgedecode
from edgedecode.chat_template import ChatTemplate
from edgedecode.digests import file_sha256
from edgedecode.errors import ExportError, IncompatiblePair, ManifestError
from edgedecode.manifest import MANIFEST_NAME, FileEntry, Generation, Manifest

from .architectures import check_engine
from .checks import CheckTexts
from .generation import read_chat_template, read_generation
from .gguf.model import GgufRequest, check_gguf
from .model import ModelJob, export_model
from .new_folder import check_place, new_folder
from .noise import POSITIONS
from .recipe import Recipe
from .source import Source, find_weights, open_source
from .span import LEAST_CONTEXT, WHOLE, Span
from .stages import Stages

__all__ = ["PairRequest", "export_pair"]

_TOKENIZER, _TEMPLATE, _LICENSES = "tokenizer.json", "chat_template.jinja", "licenses"


@dataclass(frozen=True, slots=True)
class PairRequest:
    """What to export: folders or hub ids, where to, and how weights are stored."""

    target: str
    draft: str | None
    out: Path
    recipe: Recipe
    name: str | None = None
    """The pack's name; None: its folder's."""
    license: str | None = None
    """Overrides what the sources say of themselves."""
    span: Span = WHOLE
    """How many positions the models serve."""
    noise_positions: int = POSITIONS
    """How long a text the kernels' noise is measured on; 0: not at all."""
    gguf: bool = False
    """Whether each model becomes a GGUF file too."""
    gguf_kind: str = ""
    """What llama.cpp quantizes it to, one of its mixtures; empty: the blocks of the ONNX weights."""


def export_pair(request: PairRequest, stages: Stages) -> Manifest:
    """Export a pair, or a target alone. Raises ExportError or IncompatiblePair, and then leaves nothing behind."""
    with stages.stage("check"):
        check_place(request.out, nbytes=0)
        target = open_source(request.target)
        draft = open_source(request.draft) if request.draft is not None else None
        if draft is not None:
            _check_pair(target, draft)
        generation = read_generation(target)
        template = _template(target, generation)
        sources = {"target": target} | ({"draft": draft} if draft is not None else {})
        jobs = [
            _job(role, source, request=request, template=template, generation=generation)
            for role, source in sources.items()
        ]
        check_place(request.out, nbytes=sum(job.nbytes for job in jobs))
        weights = {job.role: find_weights(job.source) for job in jobs}
    with new_folder(request.out) as folder:
        _copy_texts(folder, target, template)
        models = {job.role: export_model(job, weights[job.role], pack=folder, stages=stages) for job in jobs}
        for job in jobs:
            _copy_licenses(folder / _LICENSES / job.role, job.source)
        with stages.stage("digests"):
            manifest = Manifest(
                name=request.name or request.out.absolute().name,
                created_by=f"edgedecode {edgedecode.__version__}",
                tokenizer=_TOKENIZER,
                tokenizer_digest=target.tokenizer.digest,
                vocabulary_size=target.tokenizer.size,
                chat_template=_TEMPLATE if template is not None else None,
                generation=generation,
                models=models,
                files=_files(folder),
            )
            (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
            return Manifest.load(folder)


def _job(
    role: str, source: Source, *, request: PairRequest, template: ChatTemplate | None, generation: Generation
) -> ModelJob:
    try:
        check_engine(source.config, source.shape, name=source.name, body=request.recipe.body, head=request.recipe.head)
    except ManifestError as error:
        raise ExportError(f"{source.name}: {error}") from None
    context = request.span.context_of(source.shape)
    if context < LEAST_CONTEXT:
        raise ExportError(f"{source.name} serves {context} positions: it cannot be checked below {LEAST_CONTEXT}")
    texts = CheckTexts.of(source.tokenizer, template=template, ends=generation.end_token_ids, context=context)
    texts = replace(texts, noise_positions=request.noise_positions)
    license = request.license or source.license
    gguf = GgufRequest(generation, template.source if template else None, request.gguf_kind) if request.gguf else None
    if gguf is not None:
        check_gguf(gguf, source, request.recipe)
    return ModelJob(role, source, request.recipe, license, texts, span=request.span, gguf=gguf)


def _check_pair(target: Source, draft: Source) -> None:
    """Speculation compares ids, so both must mean the same by every one of them."""
    if target.tokenizer.digest == draft.tokenizer.digest:
        return
    difference = target.tokenizer.first_difference(draft.tokenizer)
    raise IncompatiblePair(
        f"{target.name} and {draft.name} have different tokenizers ({difference}): take a draft of the target's family"
    )


def _template(target: Source, generation: Generation) -> ChatTemplate | None:
    text = read_chat_template(target.folder)
    if text is None:
        return None
    try:
        return ChatTemplate(text, bos_token=generation.bos_token, eos_token=generation.eos_token)
    except ManifestError as error:
        raise ExportError(f"{target.name}: {error}") from None


def _copy_texts(folder: Path, target: Source, template: ChatTemplate | None) -> None:
    shutil.copyfile(target.folder / _TOKENIZER, folder / _TOKENIZER)
    if template is not None:
        (folder / _TEMPLATE).write_text(template.source, encoding="utf-8")


def _copy_licenses(folder: Path, source: Source) -> None:
    for path in source.license_files:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path.name)


def _files(folder: Path) -> dict[str, FileEntry]:
    paths: Sequence[Path] = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileEntry(nbytes=path.stat().st_size, sha256=file_sha256(path))
        for path in paths
    }
