"""Folders with finished ONNX graphs become a pack: refusals first, then each model, then the manifest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.engines.kernel_noise import POSITIONS
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Generation, Manifest
from edgedecode.pack.new_folder import check_place, new_folder
from edgedecode.text.chat_template import ChatTemplate

from ..generation import read_generation
from ..graph.graph_request import LEAST_CONTEXT
from ..pack_texts import check_tokenizers, copy_licenses, copy_texts, open_template
from ..proof.checks import CheckTexts
from ..stages import Stages
from .context_limit import context_limit
from .model import ImportJob, import_model
from .onnx_source import OnnxSource, open_onnx_source
from .pack import PackTexts, write_manifest

__all__ = ["ImportRequest", "import_pair"]


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What to import: folders, where to, and whether their weights are copied."""

    target: Path
    draft: Path | None
    out: Path
    copy: bool = False
    name: str | None = None
    """The pack's name; None: its folder's."""
    license: str | None = None
    """Overrides what the folders say of themselves."""
    noise_positions: int = POSITIONS
    """How long a text the kernels' noise is measured on; 0: not at all."""


def import_pair(request: ImportRequest, stages: Stages) -> Manifest:
    """Import a pair, or a target alone. Raises ExportError or IncompatiblePair, and then leaves nothing behind."""
    with stages.stage("check"):
        check_place(request.out, nbytes=0)
        sources = {"target": open_onnx_source(request.target)}
        if request.draft is not None:
            sources["draft"] = open_onnx_source(request.draft)
            check_tokenizers(sources["target"], sources["draft"])
        target = sources["target"]
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
            texts = PackTexts(
                name=request.name or request.out.absolute().name,
                tokenizer_digest=target.tokenizer.digest,
                vocabulary_size=target.tokenizer.size,
                template=template,
                generation=generation,
            )
            return write_manifest(folder, texts, models)


def _job(
    role: str,
    source: OnnxSource,
    *,
    request: ImportRequest,
    template: ChatTemplate | None,
    generation: Generation,
) -> ImportJob:
    limit = context_limit(source)
    if limit.context < LEAST_CONTEXT:
        raise ExportError(f"{source.name} serves {limit.context} positions: it cannot be checked below {LEAST_CONTEXT}")
    ends = generation.end_token_ids
    texts = CheckTexts.of(source.tokenizer, template=template, ends=ends, context=limit.context)
    texts = replace(texts, noise_positions=request.noise_positions)
    return ImportJob(role, source, request.license or source.license, texts, limit, request.copy)
