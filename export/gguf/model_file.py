"""Writes a model as a GGUF file, or as a plan from which the file is built on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.gguf.architectures import ARCHITECTURES
from edgedecode.pack.manifest import Generation

from ..base_model import Source
from ..graph.network import Windows
from ..graph.recipe import Recipe
from ..graph.weights_file import Weights
from .network_metadata import Identity, check_network, query_factor, window_notes, write_metadata
from .plan import PLAN_FILE, Vectors, make_plan
from .rotation import Rotation, read_rotation
from .row_source import StoredRows, kind_of
from .specials import Specials, file_name, read_specials, write_vocabulary
from .tensors import Tensor, fields_of, tensors_of, write_file
from .tokenizer_check import Reading, check_reading
from .vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedModel

GGUF_FILE = "model.gguf"


@dataclass(frozen=True, slots=True)
class GgufRequest:
    """Settings of a GGUF file."""

    generation: Generation
    chat_template: str | None
    planned: bool = False
    """Write only a plan, from which the file is built on first use."""


def check_gguf(request: GgufRequest, source: Source, recipe: Recipe) -> None:
    """Run the checks that need no weights: GGUF types for the recipe, and a tokenizer that llama.cpp supports.

    Raises ExportError, or RuntimeUnavailable if a package is missing.
    """
    if find_spec("gguf") is None:
        raise RuntimeUnavailable("GGUF files need the gguf package, not installed: pip install 'edgedecode[export]'")
    if request.planned and not (recipe.body.quantized and recipe.head.quantized):
        raise ExportError("a GGUF file is built from quantized blocks, but this recipe keeps floats")
    for scheme in (recipe.body, recipe.head):
        kind_of(scheme)
    inner = _tokenizer(source)
    read_vocabulary(inner, rows=source.shape.rows, name=source.name)
    _specials(inner, request, source)


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
) -> Reading:
    """Write `folder`/model.gguf from the same weights as the pack's graphs; return how llama.cpp reads texts with it.

    Raises ExportError if llama.cpp does not support the model or the tokenizer.
    """
    content = _content(request, source, network, windows=windows, stored=stored)
    fields = fields_of(content.writer)
    write_file(folder / GGUF_FILE, fields, content.tensors, progress=progress, release=release)
    reading = check_reading(folder / GGUF_FILE, content.inner, content.vocabulary, whole=True)
    limits = window_notes(
        windows, ARCHITECTURES[source.shape.architecture], context=network.config.max_position_embeddings
    )
    notes = (*limits, *content.specials.notes, *content.vocabulary.notes, *reading.notes)
    return replace(reading, notes=notes)


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


def _content(
    request: GgufRequest, source: Source, network: PreTrainedModel, *, windows: Windows, stored: StoredRows
) -> _Content:
    import gguf

    inner = _tokenizer(source)
    vocabulary = read_vocabulary(inner, rows=source.shape.rows, name=source.name)
    specials = _specials(inner, request, source)
    layout, rotation = ARCHITECTURES[source.shape.architecture], check_gguf_network(source, network)
    tensors = tensors_of(
        network,
        shape=source.shape,
        layout=layout,
        rotation=rotation,
        stored=stored,
        query_factor=query_factor(network, source.shape, layout),
    )
    writer = gguf.GGUFWriter(None, layout.name)
    kinds = [tensor.kind for tensor in tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1]
    main = max(sorted(set(kinds)), key=kinds.count)
    identity = Identity(file_name(source.name, inner), source.license, main)
    write_metadata(
        writer, network, shape=source.shape, layout=layout, rotation=rotation, windows=windows, identity=identity
    )
    write_vocabulary(writer, vocabulary, specials, chat_template=request.chat_template)
    return _Content(writer, tensors, inner, vocabulary, specials)


def _specials(inner: tokenizers.Tokenizer, request: GgufRequest, source: Source) -> Specials:
    beginning, padding = source.config.bos_token_id, source.config.pad_token_id
    return read_specials(inner, request.generation, name=source.name, beginning=beginning, padding=padding)


def _tokenizer(source: Source) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(source.folder / "tokenizer.json"))
