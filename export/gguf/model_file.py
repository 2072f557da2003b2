"""Writes a model as a GGUF file, or as a plan from which the file is built on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.gguf.architectures import ARCHITECTURES, Architecture
from edgedecode.pack.manifest import Generation

from ..base_model import Source
from ..graph.model_shape import Shape
from ..graph.network import Windows
from ..graph.recipe import UNROUNDED, Recipe
from ..graph.weights_file import Weights
from ..recipes.calibration import Tokens
from .imatrix import TensorImportance, check_imatrix, named_importance, read_imatrix, write_importance
from .llama_calls import quantize_file, require_engine
from .network_metadata import Identity, check_network, query_factor, window_notes, write_metadata
from .plan import PLAN_FILE, Vectors, make_plan
from .rotation import Rotation, read_rotation
from .row_source import StoredRows, kind_of
from .specials import Specials, file_name, read_specials, write_vocabulary
from .tensors import Tensor, fields_of, tensors_of, write_file
from .tokenizer_check import check_reading
from .vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedModel

GGUF_FILE = "model.gguf"
_FLOATS_FILE, _IMPORTANCE_FILE = "model.f32.gguf", "importance.npz"


@dataclass(frozen=True, slots=True)
class GgufRequest:
    """Settings of a GGUF file."""

    generation: Generation
    chat_template: str | None
    kind: str = ""
    """One of `K_QUANTS`, quantized by llama.cpp; empty: the pack's own blocks."""
    importance_texts: Tokens = ()
    """Texts to measure a K-quant's importance matrix on; empty: not measured."""
    importance_file: Path | None = None
    """File to read the importance matrix from, instead of measuring it."""
    importance: Mapping[str, FloatArray] = field(default_factory=dict)
    """The measured importance matrix, by `projection_name`."""
    planned: bool = False
    """Write only a plan, from which the file is built on first use."""

    def nbytes(self, recipe: Recipe, shape: Shape) -> int:
        """Return the approximate disk space needed to make the file."""
        return 0 if self.planned else recipe.nbytes(shape) + (floats_nbytes(shape) if self.kind else 0)


@dataclass(frozen=True, slots=True)
class GgufResult:
    """Notes for the user and measured values of a written file."""

    notes: tuple[str, ...]
    measured: dict[str, float]


def floats_nbytes(shape: Shape) -> int:
    """Return the approximate size of the temporary float32 file that a K-quant is made from."""
    return UNROUNDED.nbytes(shape)


def mixture_notes(kind: str) -> tuple[str, ...]:
    """Return notes on a file whose weights differ from the ONNX weights; `kind` as in `GgufRequest`."""
    if not kind:
        return ()
    return (
        f"llama.cpp runs its own {kind} quantization, not the blocks of the ONNX weights: the two engines may answer "
        f"differently",
    )


def check_gguf(request: GgufRequest, source: Source, recipe: Recipe) -> None:
    """Run the checks that need no weights: GGUF types for the recipe, and a tokenizer that llama.cpp supports.

    Raises ExportError, or RuntimeUnavailable if a package is missing.
    """
    if find_spec("gguf") is None:
        raise RuntimeUnavailable("GGUF files need the gguf package, not installed: pip install 'edgedecode[export]'")
    if request.kind:
        require_engine()
        if request.importance_file is not None:
            check_imatrix(request.importance_file)
    else:
        if request.planned and not (recipe.body.quantized and recipe.head.quantized):
            raise ExportError("a GGUF file is built from quantized blocks, but this recipe keeps floats")
        for scheme in (recipe.body, recipe.head):
            kind_of(scheme)
    inner = _tokenizer(source)
    read_vocabulary(inner, rows=source.shape.rows, name=source.name)
    read_specials(inner, request.generation, config=source.config, name=source.name)


def check_gguf_network(source: Source, network: PreTrainedModel) -> Rotation:
    """Return the network's RoPE parameters. Raises ExportError if llama.cpp would compute the network differently."""
    layout = ARCHITECTURES[source.shape.architecture]
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
    """Write `folder`/model.gguf from the same weights as the pack's graphs, and check its tokenizer with llama.cpp.

    Raises ExportError if llama.cpp does not support the model or the tokenizer.
    """
    content = _content(request, source, network, windows=windows, stored=stored)
    with _quantized(folder / GGUF_FILE, kind=request.kind, importance=content.importance) as path:
        write_file(path, fields_of(content.writer), content.tensors, progress=progress, release=release)
    reading = check_reading(folder / GGUF_FILE, content.inner, content.vocabulary, whole=True)
    limits = window_notes(
        windows, ARCHITECTURES[source.shape.architecture], context=network.config.max_position_embeddings
    )
    notes = (*mixture_notes(request.kind), *limits, *content.specials.notes, *content.vocabulary.notes, *reading.notes)
    return GgufResult(notes, reading.measured)


def write_plan(
    request: GgufRequest, source: Source, network: PreTrainedModel, *, windows: Windows, weights: Weights, file: Path
) -> None:
    """Write gguf.json next to the weights file; the file of `write_gguf` can be built from it without the network.

    Raises ExportError if llama.cpp does not support the model, or a tensor is not stored in blocks.
    """
    stored = StoredRows(weights, file)
    content = _content(request, source, network, windows=windows, stored=stored)
    vectors = Vectors.of(weights, file)
    plan = make_plan(content.writer, content.tensors, rows=source.shape.rows, vectors=vectors)
    file.with_name(PLAN_FILE).write_text(plan.to_json(), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Content:
    """The contents of a file: its keys in `writer`, its tensors, and its tokenizer."""

    writer: GGUFWriter
    tensors: list[Tensor]
    inner: tokenizers.Tokenizer
    vocabulary: Vocabulary
    specials: Specials
    importance: TensorImportance


def _content(
    request: GgufRequest, source: Source, network: PreTrainedModel, *, windows: Windows, stored: StoredRows
) -> _Content:
    inner = _tokenizer(source)
    vocabulary = read_vocabulary(inner, rows=source.shape.rows, name=source.name)
    specials = read_specials(inner, request.generation, config=source.config, name=source.name)
    layout, rotation = ARCHITECTURES[source.shape.architecture], check_gguf_network(source, network)
    tensors = tensors_of(
        network,
        shape=source.shape,
        layout=layout,
        rotation=rotation,
        stored=None if request.kind else stored,
        query_factor=query_factor(network, source.shape, layout),
    )
    importance = _importance(request, network, tensors, layout=layout, layers=source.shape.layers)
    writer = _writer(layout)
    if importance:
        writer.add_int32("quantize.imatrix.entries_count", len(importance))  # as llama.cpp's own tool does
    identity = Identity(file_name(source.name, inner), source.license, _main_type(tensors))
    write_metadata(
        writer,
        network,
        shape=source.shape,
        layout=layout,
        rotation=rotation,
        windows=windows,
        identity=identity,
    )
    write_vocabulary(writer, vocabulary, specials, chat_template=request.chat_template)
    return _Content(writer, tensors, inner, vocabulary, specials, importance)


def _tokenizer(source: Source) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(source.folder / "tokenizer.json"))


def _writer(layout: Architecture) -> GGUFWriter:
    import gguf

    return gguf.GGUFWriter(None, layout.name)


def _importance(
    request: GgufRequest,
    network: PreTrainedModel,
    tensors: Sequence[Tensor],
    *,
    layout: Architecture,
    layers: int,
) -> TensorImportance:
    if request.importance_file is not None:
        return read_imatrix(request.importance_file, tensors)
    return named_importance(request.importance, network, layout=layout, layers=layers)


@contextmanager
def _quantized(path: Path, *, kind: str, importance: TensorImportance) -> Iterator[Path]:
    """Yield the path to write to: `path`, or with a `kind` a temporary float file, then quantized into `path`."""
    if not kind:
        yield path
        return
    floats, columns = path.with_name(_FLOATS_FILE), path.with_name(_IMPORTANCE_FILE)
    try:
        yield floats
        if importance:
            write_importance(columns, importance)
        quantize_file(floats, path, kind=kind, importance=columns if importance else None)
    finally:  # the folder is reused after a failure, and must not contain temporary files
        floats.unlink(missing_ok=True)
        columns.unlink(missing_ok=True)


def _main_type(tensors: Sequence[Tensor]) -> str:
    """Return the most common type of matrices, not counting embedding and head."""
    kinds = [tensor.kind for tensor in tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1]
    return max(sorted(set(kinds)), key=kinds.count)
