"""One model under every recipe: what each weighs, loses and costs, against the original weights in float32.

The packs are made in a temporary folder, measured through the public runtime, and removed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.cache import cache_folder
from edgedecode.engines.text_scores import ScoredText, Scores, score_texts
from edgedecode.errors import ExportError
from edgedecode.pack.manifest import Generation, ModelEntry
from edgedecode.pack.new_folder import remove_abandoned, work_folder
from edgedecode.text.chat_template import ChatTemplate

from ..base_model import Source, find_weights, open_source
from ..checks.model_checks import opened
from ..graph.drawing import WEIGHTS_FILE
from ..graph.graph_request import WHOLE, Span
from ..graph.quantize import Scheme
from ..graph.recipe import UNROUNDED, Recipe
from ..job import ModelJob
from ..model_export import export_model
from ..pack_texts import open_template, read_generation
from ..pair_export import PairRequest, model_job
from ..resume.finished_steps import Unit
from ..stages import Stages
from .calibration import TOKENS, sample_texts
from .pass_speeds import TURNS, Speeds
from .scored_texts import read_texts, whole_texts

__all__ = ["Comparison", "Result", "compare_model"]


def _plain_and_calibrated(recipe: Recipe) -> tuple[Recipe, Recipe]:
    return recipe, replace(recipe, calibrated=True)


_INT8 = Scheme(8, 32)
RECIPES = (
    Recipe(_INT8, _INT8),
    *_plain_and_calibrated(Recipe(Scheme(4, 32), _INT8, edges=_INT8)),
    *_plain_and_calibrated(Recipe(Scheme(4, 32), _INT8)),
    *_plain_and_calibrated(Recipe(Scheme(4, 128), Scheme(8, 128))),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of one recipe. `nbytes` is the weights file; calibration changes neither it nor the speeds."""

    recipe: Recipe
    nbytes: int
    scores: Scores
    agreement: float
    """Share of scored tokens with the leading id of the original weights."""
    speeds: Speeds


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model's results, and on what they rest."""

    model: str
    results: tuple[Result, ...]
    original: Scores
    text: str
    """Where the scored text comes from, in words."""
    calibration: str
    left_out: tuple[str, ...]
    """Recipes that do not fit the model, and why."""


@dataclass(frozen=True, slots=True)
class _Packed:
    job: ModelJob
    entry: ModelEntry
    folder: Path

    @property
    def nbytes(self) -> int:
        return (self.folder / self.job.role / WEIGHTS_FILE).stat().st_size


def compare_model(
    name: str, *, text: Path | None, calibration_text: Path | None, span: Span = WHOLE, stages: Stages
) -> Comparison:
    """Export the model `name` (folder or hub id) under each of `RECIPES` and measure it.

    text: a file as `read_texts` takes it; None: a built-in line. calibration_text: likewise; None: text that the
    original model writes. Raises ExportError, and leaves nothing behind.
    """
    with stages.stage("check"):
        source = open_source(name)
        generation = read_generation(source)
        template = open_template(source.folder, generation, name=source.name)
        jobs, left_out = _jobs(source, template, generation, text=calibration_text, span=span)
        original = jobs[0]
        texts = _texts(text, original, template)
    weights = find_weights(source, stages)
    with ExitStack() as stack:
        root = stack.enter_context(_temporary_folder(sum(job.nbytes for job in jobs)))
        bench = _Bench(weights, texts, root, stages)
        packed = bench.packed(original)
        reference = bench.scored(packed)
        calibration = jobs[1].calibration or bench.written(packed)
        shutil.rmtree(packed.folder)
        packs = [bench.packed(replace(job, calibration=calibration)) for job in jobs[1:]]
        scores = [bench.scored(pack) for pack in packs]
        speeds = bench.timed(packs)
        results = tuple(
            Result(pack.job.recipe, pack.nbytes, found, found.agreement(reference), speeds[_layout(pack)])
            for pack, found in zip(packs, scores, strict=True)
        )
    count = sum(map(len, calibration))
    return Comparison(
        source.name,
        results,
        reference,
        text=str(text) if text is not None else "the built-in line",
        calibration=f"{count} tokens of {calibration_text or 'what the original model wrote to built-in prompts'}",
        left_out=left_out,
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """Makes packs of one model in a folder and measures them."""

    weights: Sequence[Path]
    texts: Sequence[ScoredText]
    root: Path
    stages: Stages

    def packed(self, job: ModelJob) -> _Packed:
        with self.stages.stage(f"export {_title(job)}"):
            folder = Path(tempfile.mkdtemp(dir=self.root))
            unit = Unit(folder, job.role, key="", kept=False)
            return _Packed(job, export_model(job, self.weights, unit=unit, stages=Stages()), folder)

    def scored(self, pack: _Packed) -> Scores:
        total = sum(text.scored for text in self.texts)
        with (
            self.stages.stage(f"score {_title(pack.job)}", total) as advance,
            opened(pack.entry, pack.folder, pack.job.texts) as model,
        ):
            return score_texts(model, self.texts, progress=advance)

    def written(self, pack: _Packed) -> Sequence[Sequence[int]]:
        texts = pack.job.texts
        with self.stages.stage("calibration text", TOKENS) as advance, opened(pack.entry, pack.folder, texts) as model:
            return sample_texts(model, texts.prompts, ends=texts.ends, progress=advance)

    def timed(self, packs: Sequence[_Packed]) -> dict[Recipe, Speeds]:
        """Time one pack of each layout, interleaved."""
        distinct = {_layout(pack): pack for pack in reversed(packs)}
        speeds = {layout: Speeds() for layout in distinct}
        with self.stages.stage("speed", TURNS * len(distinct)) as advance:
            for layout, pack in [*distinct.items()] * TURNS:
                with opened(pack.entry, pack.folder, pack.job.texts) as model:
                    speeds[layout].take_turn(model)
                advance(1)
        return speeds


def _jobs(
    source: Source, template: ChatTemplate | None, generation: Generation, *, text: Path | None, span: Span
) -> tuple[list[ModelJob], tuple[str, ...]]:
    """Return the jobs, the original weights' first, and what is left out because the engine cannot run it."""
    jobs: list[ModelJob] = []
    left_out: list[str] = []
    for recipe in (UNROUNDED, *RECIPES):
        request = PairRequest(source.name, None, Path(), recipe, span=span, noise_positions=0, calibration_text=text)
        try:
            jobs.append(model_job("target", source, request=request, template=template, generation=generation))
        except ExportError as error:
            if not jobs:
                raise
            left_out.append(f"{recipe.name}: {error}")
    return jobs, tuple(left_out)


def _texts(path: Path | None, job: ModelJob, template: ChatTemplate | None) -> tuple[ScoredText, ...]:
    if path is None:
        return whole_texts([job.texts.text.text], context=job.context)
    return read_texts(path, tokenizer=job.source.tokenizer, template=template, context=job.context)


def _layout(pack: _Packed) -> Recipe:
    return replace(pack.job.recipe, calibrated=False)


def _title(job: ModelJob) -> str:
    return f"{_layout_name(job.recipe)}, calibrated" if job.recipe.calibrated else job.recipe.name


def _layout_name(recipe: Recipe) -> str:
    return replace(recipe, calibrated=False).name


@contextmanager
def _temporary_folder(nbytes: int) -> Iterator[Path]:
    """Give a folder in the user's cache, else in the system's place. Raises ExportError where there is no room."""
    place = cache_folder("compare") or Path(tempfile.gettempdir())
    remove_abandoned(place, name="packs")
    if (free := shutil.disk_usage(place).free) < nbytes:
        raise ExportError(
            f"about {nbytes / 1e6:.0f} MB are needed for the packs that are compared and {place} has "
            f"{free / 1e6:.0f} MB left: make room, or set EDGEDECODE_CACHE to another folder"
        )
    with work_folder(place, name="packs") as folder:
        yield folder
