"""One role's model, from its source to its entry in the manifest: graph, weights, checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedecode.manifest import ModelEntry

from .architectures import ARCHITECTURES
from .checkpoint import Checkpoint
from .network import open_network
from .onnx import WEIGHTS_FILE, draw
from .recipe import Recipe
from .source import Source
from .stages import Stages

__all__ = ["ModelJob", "export_model"]


@dataclass(frozen=True, slots=True)
class ModelJob:
    """What is exported as which role, and how it is stored."""

    role: str
    source: Source
    recipe: Recipe
    license: str

    @property
    def nbytes(self) -> int:
        """About how large the weights file becomes."""
        shape, recipe = self.source.shape, self.recipe
        body = recipe.body.nbytes(shape.parameters - shape.embedding * (1 if shape.tied else 2), recipe.body.block_size or 1)
        tables = 2 * 4 * shape.context * shape.head_size
        per_weight = recipe.head.nbytes(shape.rows, shape.hidden) * (1 if shape.tied else 2)
        return body + per_weight + tables


def export_model(job: ModelJob, pack: Path, stages: Stages) -> ModelEntry:
    """Export `job` into the role's folder of `pack` and check the result. Raises ExportError when a check fails."""
    folder = pack / job.role
    folder.mkdir()
    shape, recipe = job.source.shape, job.recipe
    checkpoint = Checkpoint(list(job.source.weights))
    try:
        with stages.stage(f"{job.role}: structure"):
            network = open_network(job.source.folder, checkpoint)
            parameters = sum(parameter.numel() for parameter in network.parameters())
            drawing = draw(network, builder=ARCHITECTURES[shape.architecture], head_size=shape.head_size, recipe=recipe)
        with stages.stage(f"{job.role}: weights", drawing.weights.elements) as advance:
            drawing.write(folder, progress=advance, release=checkpoint.release)
    finally:
        checkpoint.close()
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
        bits=recipe.body.bits,
        block_size=recipe.body.block_size,
        head_bits=recipe.head.bits,
        license=job.license,
        source=job.source.name,
    )
