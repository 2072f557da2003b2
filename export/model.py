"""One role's model, from its source to its entry in the manifest: graph, weights, checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.manifest import ModelEntry

from .architectures import ARCHITECTURES
from .checkpoint import Checkpoint
from .checks import CheckTexts, check_noise, check_parity
from .gguf.model import GGUF_FILE, GgufRequest, check_gguf_network, write_gguf
from .gguf.rows import StoredRows
from .network import open_network
from .onnx import EXACT_FILE, WEIGHTS_FILE, Drawing, draw
from .recipe import Recipe
from .reference import Reference
from .source import Source
from .span import Span
from .stages import Stages
from .windows import Windows, find_windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["ModelJob", "export_model"]


@dataclass(frozen=True, slots=True)
class ModelJob:
    """What is exported as which role, and how it is stored."""

    role: str
    source: Source
    recipe: Recipe
    license: str
    texts: CheckTexts
    span: Span
    gguf: GgufRequest | None = None
    """What to write a GGUF file from, None: no such file."""

    @property
    def context(self) -> int:
        """Most positions that the exported graph serves."""
        return self.span.context_of(self.source.shape)

    @property
    def nbytes(self) -> int:
        """About how large the weights file becomes, and the GGUF file where there is one."""
        rotary = 2 * 4 * self.context * self.source.shape.head_size // 2
        gguf = 0 if self.gguf is None else self.gguf.nbytes(self.recipe, self.source.shape)
        return self.recipe.nbytes(self.source.shape) + rotary + gguf


def export_model(job: ModelJob, weights: Sequence[Path], *, pack: Path, stages: Stages) -> ModelEntry:
    """Export `job`, whose `weights` lie in these files, into the role's folder of `pack` and check the result.

    Raises ExportError when a check fails.
    """
    folder = pack / job.role
    folder.mkdir()
    checkpoint = Checkpoint(weights)
    try:
        with stages.stage(f"{job.role}: structure"):
            network = _network(job, checkpoint)
            if job.gguf is not None:
                check_gguf_network(job.source, network)
            windows = find_windows(network, context=job.context)
            drawing = _drawing(job, network, windows=windows)
            parameters = sum(parameter.numel() for parameter in network.parameters())
            entry = _entry(job, drawing, parameters=parameters, window=windows.size)
        with stages.stage(f"{job.role}: weights", drawing.weights.elements) as advance:
            drawing.write(folder, progress=advance, release=checkpoint.release)
        with stages.stage(f"{job.role}: parity"):
            drawing.write_exact(folder)
            reference = Reference(network, job.recipe, release=checkpoint.release, windows=windows)
            parity = check_parity(entry, pack, exact=f"{job.role}/{EXACT_FILE}", reference=reference, texts=job.texts)
            (folder / EXACT_FILE).unlink()
        entry = replace(entry, parity=parity)
        if job.gguf is not None:
            stored = StoredRows(drawing.weights, folder / WEIGHTS_FILE)
            with stages.stage(f"{job.role}: gguf", parameters) as advance:
                gguf = write_gguf(
                    job.gguf,
                    job.source,
                    network,
                    windows=windows,
                    stored=stored,
                    folder=folder,
                    progress=advance,
                    release=checkpoint.release,
                )
            entry = replace(
                entry,
                gguf=f"{job.role}/{GGUF_FILE}",
                notes=(*entry.notes, *gguf.notes),
                parity={**entry.parity, **gguf.measured},
            )
    finally:
        checkpoint.close()
    return _with_noise(entry, job, pack=pack, stages=stages) if job.texts.noise_positions else entry


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
        notes=job.span.notes_on(job.source.shape),
    )
