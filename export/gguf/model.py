"""A model of a pack becomes one GGUF file beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from edgedecode.errors import RuntimeUnavailable
from edgedecode.manifest import Generation

from ..graph.architectures import Shape
from ..graph.recipe import UNROUNDED, Recipe
from ..graph.windows import Windows
from ..source import Source
from .engine import quantize_file, require_engine
from .file import write_file
from .layouts import LAYOUTS, Layout
from .limits import check_network, query_factor, window_notes
from .metadata import Identity, write_metadata
from .naming import file_name
from .reading import check_reading
from .rotary import Rotation, read_rotation
from .rows import StoredRows
from .specials import read_specials, write_vocabulary
from .tensors import Tensor, tensors_of
from .transcoding import kind_of
from .vocabulary import read_vocabulary

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedModel

__all__ = ["GGUF_FILE", "GgufRequest", "GgufResult", "check_gguf", "check_gguf_network", "write_gguf"]

GGUF_FILE = "model.gguf"
_FLOATS_FILE = "model.f32.gguf"


@dataclass(frozen=True, slots=True)
class GgufRequest:
    """What the file needs besides the model. kind: one of `K_QUANTS`, made by llama.cpp; empty: the pack's blocks."""

    generation: Generation
    chat_template: str | None
    kind: str = ""

    def nbytes(self, recipe: Recipe, shape: Shape) -> int:
        """Return about how much room is needed: a mixture is made from a file of float32 numbers."""
        return (UNROUNDED if self.kind else recipe).nbytes(shape)


@dataclass(frozen=True, slots=True)
class GgufResult:
    """What is known of a file that was written: sentences for the user, and numbers that were measured."""

    notes: tuple[str, ...]
    measured: dict[str, float]


def check_gguf(request: GgufRequest, source: Source, recipe: Recipe) -> None:
    """Refuse what needs no weights to be refused: blocks without a type, tokenizers that llama.cpp cannot read.

    Raises ExportError, or RuntimeUnavailable where a package is missing.
    """
    if find_spec("gguf") is None:
        raise RuntimeUnavailable("GGUF files need the gguf package, not installed: pip install 'edgedecode[export]'")
    if request.kind:
        require_engine()
    else:
        for scheme in (recipe.body, recipe.head):
            kind_of(scheme)
    inner = _tokenizer(source)
    read_vocabulary(inner, rows=source.shape.rows, name=source.name)
    read_specials(inner, request.generation, config=source.config, name=source.name)


def check_gguf_network(source: Source, network: PreTrainedModel) -> Rotation:
    """Return how the network rotates. Raises ExportError for what llama.cpp would compute otherwise."""
    layout = LAYOUTS[source.shape.architecture]
    rotation = read_rotation(network, layout)
    check_network(network, source.shape, layout, rotation)
    return rotation


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

    Raises ExportError for what llama.cpp cannot run or read.
    """
    inner = _tokenizer(source)
    vocabulary = read_vocabulary(inner, rows=source.shape.rows, name=source.name)
    specials = read_specials(inner, request.generation, config=source.config, name=source.name)
    layout, rotation = LAYOUTS[source.shape.architecture], check_gguf_network(source, network)
    tensors = tensors_of(
        network,
        shape=source.shape,
        layout=layout,
        rotation=rotation,
        stored=None if request.kind else stored,
        query_factor=query_factor(network, source.shape, layout),
    )
    writer = _writer(layout)
    identity = Identity(file_name(source.name, inner), source.license, _most(tensors))
    write_metadata(
        writer, network, shape=source.shape, layout=layout, rotation=rotation, windows=windows, identity=identity
    )
    write_vocabulary(writer, vocabulary, specials, chat_template=request.chat_template)
    with _quantized(folder / GGUF_FILE, kind=request.kind) as path:
        write_file(path, writer, tensors, progress=progress, release=release)
    reading = check_reading(folder / GGUF_FILE, inner, vocabulary, whole=True)
    limits = window_notes(windows, layout, context=network.config.max_position_embeddings)
    return GgufResult((*limits, *specials.notes, *vocabulary.notes, *reading.notes), reading.measured)


def _tokenizer(source: Source) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(source.folder / "tokenizer.json"))


def _writer(layout: Layout) -> GGUFWriter:
    import gguf

    return gguf.GGUFWriter(None, layout.name)


@contextmanager
def _quantized(path: Path, *, kind: str) -> Iterator[Path]:
    """Give the place for a file: `path`, or with a `kind` one beside it that becomes `path` when llama.cpp is done."""
    if not kind:
        yield path
        return
    floats = path.with_name(_FLOATS_FILE)
    yield floats
    quantize_file(floats, path, kind=kind)
    floats.unlink()


def _most(tensors: Sequence[Tensor]) -> str:
    """Return the type of most matrices, embedding and head left aside."""
    kinds = [tensor.kind for tensor in tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1]
    return max(sorted(set(kinds)), key=kinds.count)
