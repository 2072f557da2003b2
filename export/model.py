"""One role's model, from its source to its entry in the manifest: graph, weights, checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.manifest import ModelEntry

from .architectures import ARCHITECTURES, Shape
from .calibration import TOKENS, Importance, Tokens, find_importance, sample_texts
from .checkpoint import Checkpoint
from .checks import CheckTexts, check_noise, check_parity, opened
from .network import open_network
from .onnx import EXACT_FILE, WEIGHTS_FILE, Drawing, draw
from .recipe import Recipe
from .reference import Reference
from .source import Source
from .span import Span
from .stages import Stages
from .unit import Unit
from .windows import Windows, find_windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ModelJob", "export_model", "weights_nbytes"]

_WEIGHTS, _PARITY = "weights", "parity"


@dataclass(frozen=True, slots=True)
class ModelJob:
    """What is exported as which role, and how it is stored."""

    role: str
    source: Source
    recipe: Recipe
    license: str
    texts: CheckTexts
    span: Span
    calibration: Tokens = ()
    """What a calibrated recipe is calibrated on; empty: text that the model itself writes."""

    @property
    def context(self) -> int:
        """Most positions that the exported graph serves."""
        return self.span.context_of(self.source.shape)

    @property
    def nbytes(self) -> int:
        """About how large the weights file becomes."""
        return weights_nbytes(self.source.shape, self.recipe, context=self.context)


def weights_nbytes(shape: Shape, recipe: Recipe, *, context: int) -> int:
    """Return about how large the weights file of a model becomes."""
    rotary = 2 * 4 * context * shape.head_size // 2
    return recipe.nbytes(shape) + rotary


def export_model(job: ModelJob, weights: Sequence[Path], *, unit: Unit, stages: Stages) -> ModelEntry:
    """Export `job`, whose `weights` lie in these files, into the role's folder of `unit` and check the result.

    Steps that the unit has from an earlier run are not done again. Raises ExportError when a check fails.
    """
    unit.resume(stages)
    entry = unit.finished(_PARITY) or _checked(job, weights, unit=unit, stages=stages)
    if job.texts.noise_positions:
        step = f"noise over {job.texts.noise_positions}"
        entry = unit.finished(step) or unit.finish(step, _with_noise(entry, job, pack=unit.folder, stages=stages))
    return replace(entry, license=job.license, source=job.source.origin)


def _checked(job: ModelJob, weights: Sequence[Path], *, unit: Unit, stages: Stages) -> ModelEntry:
    """Write the model, unless that is done, and prove it; both need the checkpoint."""
    folder = unit.folder / job.role
    checkpoint = Checkpoint(weights)
    try:
        with stages.stage(f"{job.role}: structure"):
            network = _network(job, checkpoint)
            windows = find_windows(network, context=job.context)
            drawing = _drawing(job, network, windows=windows)
            parameters = sum(parameter.numel() for parameter in network.parameters())
            entry = _entry(job, drawing, parameters=parameters, window=windows.size)
        reference = Reference(network, job.recipe, release=checkpoint.release, windows=windows)
        if job.recipe.calibrated:
            texts = job.calibration or _own_text(
                job, drawing, entry, folder=folder, release=checkpoint.release, stages=stages
            )
            importance = _importance(job, reference, texts=texts, stages=stages)
            drawing.weights.weigh(importance)
            reference = reference.weighed(importance)
        if unit.finished(_WEIGHTS) is None:
            with stages.stage(f"{job.role}: weights", drawing.weights.elements) as advance:
                drawing.write(folder, progress=advance, release=checkpoint.release)
            if not job.recipe.calibrated:  # the importance is not kept, so that weights and their check are one step
                unit.finish(_WEIGHTS, entry)
        with stages.stage(f"{job.role}: parity"):
            drawing.write_exact(folder)
            exact = f"{job.role}/{EXACT_FILE}"
            parity = check_parity(entry, unit.folder, exact=exact, reference=reference, texts=job.texts)
            (folder / EXACT_FILE).unlink()
            return unit.finish(_PARITY, replace(entry, parity=parity))
    finally:
        checkpoint.close()


def _network(job: ModelJob, checkpoint: Checkpoint) -> PreTrainedModel:
    """Open the network; its tables of positions end where the exported context does."""
    shape = job.source.shape
    long_rope = job.span.long_rope and shape.short_context > 0
    network = open_network(job.source.folder, checkpoint, architecture=shape.architecture, long_rope=long_rope)
    network.config.max_position_embeddings = job.context  # after the rotary module was made from the original value
    return network


def _drawing(job: ModelJob, network: PreTrainedModel, *, windows: Windows) -> Drawing:
    # Only the 8-bit kernels compute one row as they compute several, bit for bit. What a draft proposes may depend on
    # how many rows were asked for: the target decides what is emitted.
    early = job.recipe.body.bits == 8 or job.role == "draft"
    shape = job.source.shape
    builder = ARCHITECTURES[shape.architecture]
    return draw(
        network,
        builder=builder,
        head_size=shape.head_size,
        recipe=job.recipe,
        early_rows=early,
        windowed=windows.layers,
    )


def _own_text(
    job: ModelJob, drawing: Drawing, entry: ModelEntry, *, folder: Path, release: Callable[[], None], stages: Stages
) -> Tokens:
    """Let the model write: with the weights it would have uncalibrated, which the calibrated ones then replace."""
    with stages.stage(f"{job.role}: calibration text", TOKENS) as advance:
        drawing.write(folder, progress=lambda amount: None, release=release)
        with opened(entry, folder.parent, job.texts) as model:
            return sample_texts(model, job.texts.prompts, ends=job.texts.ends, progress=advance)


def _importance(job: ModelJob, reference: Reference, *, texts: Tokens, stages: Stages) -> Importance:
    with stages.stage(f"{job.role}: importance", sum(len(text) for text in texts)) as advance:
        return find_importance(reference, texts, tied=job.source.shape.tied, progress=advance)


def _with_noise(entry: ModelEntry, job: ModelJob, *, pack: Path, stages: Stages) -> ModelEntry:
    with stages.stage(f"{job.role}: kernel noise", job.texts.noise_positions) as advance:
        noise = check_noise(entry, pack, texts=job.texts, progress=advance)
    measured = {"noise_largest": noise.largest, "noise_positions": float(noise.positions)}
    return replace(entry, kernel_noise=noise.percentile, parity={**entry.parity, **measured})


def _entry(job: ModelJob, drawing: Drawing, *, parameters: int, window: int) -> ModelEntry:
    shape = job.source.shape
    return ModelEntry(
        architecture=shape.architecture,
        rows=shape.rows,
        context=job.context,
        hidden_size=shape.hidden,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        parameters=parameters,
        weights=f"{job.role}/{WEIGHTS_FILE}",
        graphs={"base": drawing.graph_in(job.role)},
        bits=job.recipe.body.bits,
        block_size=job.recipe.body.block_size,
        head_bits=job.recipe.head.bits,
        license=job.license,
        source=job.source.origin,
        window=window,
        quantization=job.recipe.remark,
        notes=job.span.notes_on(job.source.shape),
    )
