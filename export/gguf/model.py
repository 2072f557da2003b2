"""A model of a pack becomes one GGUF file beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from edgedecode.manifest import Generation

from ..source import Source
from ..windows import Windows
from .engine import K_QUANTS, quantize_file
from .file import write_file
from .layouts import LAYOUTS
from .limits import check_network, query_factor, window_notes
from .metadata import Identity, write_metadata
from .naming import file_name
from .reading import check_reading
from .rotary import read_rotation
from .rows import StoredRows
from .specials import read_specials, write_vocabulary
from .tensors import Tensor, tensors_of
from .vocabulary import read_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["GGUF_FILE", "GgufRequest", "GgufResult", "write_gguf"]

GGUF_FILE = "model.gguf"
_FLOATS_FILE = "model.f32.gguf"


@dataclass(frozen=True, slots=True)
class GgufRequest:
    """What the file needs besides the model. kind: one of `K_QUANTS`, quantized by llama.cpp; empty: the pack's blocks."""

    generation: Generation
    chat_template: str | None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class GgufResult:
    """What is known of a file that was written: sentences for the user, and numbers that were measured."""

    notes: tuple[str, ...]
    measured: dict[str, float]


def write_gguf(
    request: GgufRequest,
    source: Source,
    network: PreTrainedModel,
    *,
    windows: Windows,
    stored: StoredRows,
    folder: Path,
    progress: Callable[[int], None],
    release: Callable[[], None],
) -> GgufResult:
    """Write `folder`/model.gguf from the same views and blocks as the pack's graphs, and let llama.cpp read its texts.

    Raises ExportError for what llama.cpp cannot run or read, RuntimeUnavailable where K-quants need it installed.
    """
    import gguf

    shape, layout = source.shape, LAYOUTS[source.shape.architecture]
    rotation = read_rotation(network, layout)
    check_network(network, shape, layout, rotation)
    inner = tokenizers.Tokenizer.from_file(str(source.folder / "tokenizer.json"))
    vocabulary = read_vocabulary(inner, rows=shape.rows, name=source.name)
    specials = read_specials(inner, request.generation, config=source.config, name=source.name)
    tensors = tensors_of(
        network,
        shape=shape,
        layout=layout,
        rotation=rotation,
        stored=None if request.kind else stored,
        query_factor=query_factor(network, shape, layout),
    )
    writer = gguf.GGUFWriter(None, layout.name)
    identity = Identity(file_name(source.name, inner), source.license, _most(tensors))
    write_metadata(
        writer, network, shape=shape, layout=layout, rotation=rotation, windows=windows, identity=identity
    )
    write_vocabulary(writer, vocabulary, specials, chat_template=request.chat_template)
    path = folder / GGUF_FILE
    floats = folder / _FLOATS_FILE if request.kind in K_QUANTS else path
    write_file(floats, writer, tensors, progress=progress, release=release)
    if floats != path:
        quantize_file(floats, path, kind=request.kind)
        floats.unlink()
    reading = check_reading(path, inner, vocabulary)
    limits = window_notes(windows, layout, context=network.config.max_position_embeddings)
    return GgufResult((*limits, *specials.notes, *vocabulary.notes, *reading.notes), reading.measured)


def _most(tensors: list[Tensor]) -> str:
    """Return the type of the largest part of the blocks' matrices, the embedding left aside."""
    kinds = [tensor.kind for tensor in tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1]
    return max(sorted(set(kinds)), key=kinds.count)
