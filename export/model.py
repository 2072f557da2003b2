"""One role's model, from its source to its entry in the manifest: graph, weights, checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.manifest import ModelEntry

from .architectures import ARCHITECTURES, Shape
from .checkpoint import Checkpoint
from .checks import CheckTexts, check_noise, check_parity
from .network import open_network
from .onnx import EXACT_FILE, WEIGHTS_FILE, Drawing, draw
from .recipe import Recipe
from .reference import Reference
from .source import Source
from .stages import Stages
from .unit import Unit

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

    @property
    def nbytes(self) -> int:
        """About how large the weights file becomes."""
        return weights_nbytes(self.source.shape, self.recipe)


def weights_nbytes(shape: Shape, recipe: Recipe) -> int:
    """Return about how large the weights file of a model becomes."""
    rotary = 2 * 4 * shape.context * shape.head_size // 2
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
            network = open_network(job.source.folder, checkpoint, architecture=job.source.shape.architecture)
            drawing = _drawing(job, network)
            entry = _entry(job, drawing, parameters=sum(parameter.numel() for parameter in network.parameters()))
        if unit.finished(_WEIGHTS) is None:
            with stages.stage(f"{job.role}: weights", drawing.weights.elements) as advance:
                drawing.write(folder, progress=advance, release=checkpoint.release)
                unit.finish(_WEIGHTS, entry)
        with stages.stage(f"{job.role}: parity"):
            drawing.write_exact(folder)
            reference = Reference(network, job.recipe, release=checkpoint.release)
            exact = f"{job.role}/{EXACT_FILE}"
            parity = check_parity(entry, unit.folder, exact=exact, reference=reference, texts=job.texts)
            (folder / EXACT_FILE).unlink()
            return unit.finish(_PARITY, replace(entry, parity=parity))
    finally:
        checkpoint.close()


def _drawing(job: ModelJob, network: PreTrainedModel) -> Drawing:
    # Only the 8-bit kernels compute one row as they compute several, bit for bit. What a draft proposes may depend on
    # how many rows were asked for: the target decides what is emitted.
    early = job.recipe.body.bits == 8 or job.role == "draft"
    shape = job.source.shape
    builder = ARCHITECTURES[shape.architecture]
    return draw(network, builder=builder, head_size=shape.head_size, recipe=job.recipe, early_rows=early)


def _with_noise(entry: ModelEntry, job: ModelJob, *, pack: Path, stages: Stages) -> ModelEntry:
    with stages.stage(f"{job.role}: kernel noise", job.texts.noise_positions) as advance:
        noise = check_noise(entry, pack, texts=job.texts, progress=advance)
    measured = {"noise_largest": noise.largest, "noise_positions": float(noise.positions)}
    return replace(entry, kernel_noise=noise.percentile, parity={**entry.parity, **measured})


def _entry(job: ModelJob, drawing: Drawing, *, parameters: int) -> ModelEntry:
    shape = job.source.shape
    return ModelEntry(
        architecture=shape.architecture,
        rows=shape.rows,
        context=shape.context,
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
    )
