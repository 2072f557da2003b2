"""A pair becomes a pack: refusals first, then each model, then the manifest; the folder appears whole or not at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgedecode.engines.kernel_noise import POSITIONS
from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.pack.manifest import Generation, Manifest, ModelEntry
from edgedecode.pack.new_folder import check_place, new_folder
from edgedecode.text.chat_template import ChatTemplate

from .base_model import Source, find_weights, open_source
from .checks.model_checks import CheckTexts
from .gguf.model_file import GgufRequest, check_gguf
from .gguf.peft_adapter import adapter_entries, check_adapters, write_adapters
from .graph.graph_request import BASE_ONLY, LEAST_CONTEXT, WHOLE, GraphRequest, Span
from .graph.model_shape import check_engine
from .graph.recipe import Recipe
from .job import ModelJob
from .model_export import export_model
from .pack_texts import (
    NO_TEMPLATE,
    PackTexts,
    check_tokenizers,
    copy_licenses,
    copy_texts,
    open_template,
    read_generation,
    write_manifest,
)
from .recipes.calibration import Tokens
from .recipes.scored_texts import read_texts
from .resume.step_cache import Kept, job_key, kept_units
from .stages import Stages

__all__ = ["PairRequest", "export_pair", "model_job", "plan_pair"]

_log = logging.getLogger(__name__)


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
    calibration_text: Path | None = None
    """What a calibrated recipe is calibrated on; None: text that each model itself writes."""
    activations: str = "auto"
    """As in `ModelJob`."""
    noise_positions: int = POSITIONS
    """How long a text the kernels' noise is measured on; 0: not at all."""
    graphs: GraphRequest = BASE_ONLY
    """The graphs each model gets over its weights."""
    gguf: bool = False
    """Whether each model becomes a GGUF file too."""
    gguf_kind: str = ""
    """What llama.cpp quantizes it to, one of its mixtures; empty: the blocks of the ONNX weights."""
    imatrix_text: Path | None = None
    """What the importance matrix of such a mixture is measured on; None: it has none, or `imatrix`."""
    imatrix: Path | None = None
    """An importance matrix that llama.cpp's own tool measured, in GGUF."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """Folders of PEFT adapters for the target, by the names they get; they need `gguf`."""
    cache: bool = True
    """Keep finished steps in the user's cache until the pack is in its place."""


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What an export will do, the target's job first."""

    jobs: tuple[ModelJob, ...]
    generation: Generation
    template: ChatTemplate | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user of the pack must know of it as a whole."""
        return () if self.template is not None else (NO_TEMPLATE,)


def export_pair(request: PairRequest, stages: Stages) -> Manifest:
    """Export a pair, or a target alone. Raises ExportError or IncompatiblePair, and then leaves nothing behind.

    Finished steps stay in the cache when it is interrupted or the other model is refused: a rerun goes on from there.
    """
    with stages.stage("check"):
        check_place(request.out, nbytes=0)
        plan = plan_pair(request)
        check_place(request.out, nbytes=sum(job.nbytes for job in plan.jobs))
    target, jobs = plan.jobs[0].source, plan.jobs
    weights = {job.role: find_weights(job.source, stages) for job in jobs}
    with kept_units(use=request.cache) as kept, new_folder(request.out) as folder:
        copy_texts(target.folder, folder, template=plan.template)
        write_adapters(request.adapters, folder, shape=target.shape)
        models = {job.role: _model(job, weights[job.role], pack=folder, kept=kept, stages=stages) for job in jobs}
        for job in jobs:
            copy_licenses(job.source.folder, folder, role=job.role)
        with stages.stage("digests"):
            texts = PackTexts(
                request.name or request.out.absolute().name, target.tokenizer, plan.template, plan.generation
            )
            adapters = adapter_entries(request.adapters, folder, target=models["target"])
            return write_manifest(folder, texts, models, adapters=adapters)


def plan_pair(request: PairRequest) -> PairPlan:
    """Find and check everything that needs no weights and no place. Raises ExportError or IncompatiblePair."""
    check_adapters(request.adapters, gguf=request.gguf)
    target = open_source(request.target)
    draft = open_source(request.draft) if request.draft is not None else None
    if draft is not None:
        check_tokenizers(target, draft)
    generation = read_generation(target)
    template = open_template(target.folder, generation, name=target.name)
    sources = {"target": target} | ({"draft": draft} if draft is not None else {})
    jobs = [
        model_job(role, source, request=request, template=template, generation=generation)
        for role, source in sources.items()
    ]
    return PairPlan(tuple(jobs), generation, template)


def model_job(
    role: str, source: Source, *, request: PairRequest, template: ChatTemplate | None, generation: Generation
) -> ModelJob:
    """Return the job that exports `source`. Raises ExportError for what the engine cannot run."""
    check_engine(source.config, source.shape, name=source.name, body=request.recipe.body, head=request.recipe.head)
    if role == "target":  # a draft may have less of both
        request.span.check(source.shape, name=source.name)
    request.graphs.check(source.shape.architecture, name=source.name)
    context = request.span.context_of(source.shape)
    if context < LEAST_CONTEXT:
        raise ExportError(f"{source.name} serves {context} positions: it cannot be checked below {LEAST_CONTEXT}")
    texts = CheckTexts.of(source.tokenizer, template=template, ends=generation.end_token_ids, context=context)
    texts = replace(texts, noise_positions=request.noise_positions)
    return ModelJob(
        role,
        source,
        recipe=request.recipe.of(source.shape),
        license=request.license or source.license,
        texts=texts,
        span=request.span,
        calibration=_texts(request.calibration_text, source, template=template, context=context),
        graphs=request.graphs,
        activations=request.activations,
        gguf=_gguf(request, source, template=template, generation=generation),
    )


def _gguf(
    request: PairRequest, source: Source, *, template: ChatTemplate | None, generation: Generation
) -> GgufRequest | None:
    """Return what the GGUF file, or its plan, is made of; None: no file can be made of it, and none was asked for."""
    gguf = GgufRequest(
        generation,
        template.source if template else None,
        request.gguf_kind,
        importance_texts=_texts(
            request.imatrix_text, source, template=template, context=request.span.context_of(source.shape)
        ),
        importance_file=request.imatrix,
        planned=not request.gguf,
    )
    try:
        check_gguf(gguf, source, request.recipe)
    except (ExportError, RuntimeUnavailable) as error:
        if request.gguf:
            raise
        _log.info("no GGUF file can be made of %s: %s", source.name, error)
        return None
    return gguf


def _texts(path: Path | None, source: Source, *, template: ChatTemplate | None, context: int) -> Tokens:
    if path is None:
        return ()
    texts = read_texts(path, tokenizer=source.tokenizer, template=template, context=context)
    return tuple(text.tokens for text in texts)


def _model(job: ModelJob, weights: Sequence[Path], *, pack: Path, kept: Kept, stages: Stages) -> ModelEntry:
    """Make one role's model where it is kept, then put it into the pack."""
    unit = kept.unit(job.role, key=job_key(job, weights), nbytes=job.nbytes, pack=pack)
    with unit.making():
        entry = export_model(job, weights, unit=unit, stages=stages)
    unit.deliver(pack)
    return entry
