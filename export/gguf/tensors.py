"""The tensors of a GGUF file: their llama.cpp names, their rows, and writing them as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import Architecture
from edgedecode.gguf.encoding import F32, WrittenTensor, encoded_field, write_encoded

from .rotation import Rotation
from .row_source import ArrayRows, RowArray, Rows

if TYPE_CHECKING:
    import gguf
    from gguf import GGUFWriter

_SUFFIXES = (".weight", ".bias")
_CHUNK_ELEMENTS = 1 << 20
"""Elements written at a time; bounds memory."""
_TYPES = {"F32": F32, "F16": 1, "Q4_0": 2, "Q8_0": 8}
"""ggml's numbers of the types."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file. head: rows per attention head, whose halves are interleaved; 0: keep the row order."""

    name: str
    shape: tuple[int, ...]
    rows: Rows
    head: int = 0

    @property
    def kind(self) -> str:
        return self.rows.kind


def tensor_name(name: str, layout: Architecture, *, layers: int) -> str:
    """Return llama.cpp's name of a transformers parameter. Raises ExportError if it has none."""
    found = _name_map(layout.name, layers).get_name(name, try_suffixes=_SUFFIXES)
    if found is None:
        raise ExportError(
            f"llama.cpp's {layout.name} has no tensor for {name}: export without gguf among the --formats"
        )
    return str(found)


@lru_cache
def _name_map(architecture: str, layers: int) -> gguf.TensorNameMap:
    """Return the name table of an architecture; cached, because it is large and used for every tensor."""
    import gguf

    architectures = {title: value for value, title in gguf.MODEL_ARCH_NAMES.items()}
    return gguf.get_tensor_name_map(architectures[architecture], layers)


def factors_of(layout: Architecture, rotation: Rotation) -> Iterator[Tensor]:
    """Yield the tensors of RoPE factors."""
    names: Sequence[str] = layout.factors if len(rotation.factors) else ()
    for name in names:
        yield Tensor(name, rotation.factors.shape, ArrayRows(rotation.factors))


def fields_of(writer: GGUFWriter) -> list[bytes]:
    """Encode the keys of a writer."""
    (keys,) = writer.kv_data
    return [
        encoded_field(name, key.value, kind=int(key.type), element=None if key.sub_type is None else int(key.sub_type))
        for name, key in keys.items()
    ]


def write_file(
    path: Path,
    fields: Sequence[bytes],
    tensors: Sequence[Tensor],
    *,
    progress: Callable[[int], None],
    release: Callable[[], None],
) -> None:
    """Write encoded fields, then the tensors. Calls `progress` with written elements, `release` after each chunk."""

    def pieces(tensor: Tensor) -> Iterator[memoryview]:
        count, unit = tensor.shape[0], tensor.head or 1
        step = max(1, _CHUNK_ELEMENTS // (unit * prod(tensor.shape[1:]))) * unit
        for first in range(0, count, step):
            rows = tensor.rows.read(first, min(first + step, count))
            yield np.ascontiguousarray(_interleaved(rows, tensor.head)).data.cast("B")
            release()
        progress(prod(tensor.shape))

    written = [
        WrittenTensor(tensor.name, tensor.shape[::-1], _TYPES[tensor.kind], partial(pieces, tensor))
        for tensor in tensors
    ]
    with path.open("wb") as file:
        write_encoded(file, fields, written)
        file.flush()
        os.fsync(file.fileno())


def _interleaved(rows: RowArray, head: int) -> RowArray:
    """Interleave the halves of each head's rows: row i of the second half follows row i of the first.

    Llama's original RoPE rotates adjacent rows, transformers' rotates halves. A `head` of 0 changes nothing.
    """
    if not head:
        return rows
    return rows.reshape(-1, 2, head // 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)
