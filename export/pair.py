"""A pair becomes a pack: refusals first, then each model, then the manifest; the folder appears whole or not at all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import edgedecode
from edgedecode.chat_template import ChatTemplate
from edgedecode.errors import ExportError, ManifestError
from edgedecode.manifest import MANIFEST_NAME, Manifest

from .architectures import check_engine
from .checks import CheckTexts
from .generation import read_generation
from .model import ModelJob, export_model
from .new_folder import check_place, new_folder
from .noise import POSITIONS
from .pack_texts import TEMPLATE, TOKENIZER, check_tokenizers, copy_licenses, copy_texts, list_files, open_template
from .recipe import Recipe
from .source import Source, find_weights, open_source
from .stages import Stages

__all__ = ["PairRequest", "export_pair"]


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
    noise_positions: int = POSITIONS
    """How long a text the kernels' noise is measured on; 0: not at all."""


def export_pair(request: PairRequest, stages: Stages) -> Manifest:
    """Export a pair, or a target alone. Raises ExportError or IncompatiblePair, and then leaves nothing behind."""
    with stages.stage("check"):
        check_place(request.out, nbytes=0)
        target = open_source(request.target)
        draft = open_source(request.draft) if request.draft is not None else None
        if draft is not None:
            check_tokenizers(target, draft)
        generation = read_generation(target)
        template = open_template(target.folder, generation, name=target.name)
        sources = {"target": target} | ({"draft": draft} if draft is not None else {})
        jobs = [
            _job(role, source, request=request, template=template, ends=generation.end_token_ids)
            for role, source in sources.items()
        ]
        check_place(request.out, nbytes=sum(job.nbytes for job in jobs))
        weights = {job.role: find_weights(job.source) for job in jobs}
    with new_folder(request.out) as folder:
        copy_texts(target.folder, folder, template=template)
        models = {job.role: export_model(job, weights[job.role], pack=folder, stages=stages) for job in jobs}
        for job in jobs:
            copy_licenses(job.source.folder, folder, role=job.role)
        with stages.stage("digests"):
            manifest = Manifest(
                name=request.name or request.out.absolute().name,
                created_by=f"edgedecode {edgedecode.__version__}",
                tokenizer=TOKENIZER,
                tokenizer_digest=target.tokenizer.digest,
                vocabulary_size=target.tokenizer.size,
                chat_template=TEMPLATE if template is not None else None,
                generation=generation,
                models=models,
                files=list_files(folder),
            )
            (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
            return Manifest.load(folder)


def _job(
    role: str, source: Source, *, request: PairRequest, template: ChatTemplate | None, ends: Collection[int]
) -> ModelJob:
    try:
        check_engine(source.config, source.shape, name=source.name, body=request.recipe.body, head=request.recipe.head)
    except ManifestError as error:
        raise ExportError(f"{source.name}: {error}") from None
    texts = CheckTexts.of(source.tokenizer, template=template, ends=ends, context=source.shape.context)
    texts = replace(texts, noise_positions=request.noise_positions)
    return ModelJob(role, source, request.recipe, request.license or source.license, texts)
