"""Writes a GGUF file in a stream: its keys at once, its tensors a few rows at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from .rows import RowArray
from .tensors import Tensor

if TYPE_CHECKING:
    from gguf import GGUFWriter

__all__ = ["woven", "write_file"]

_CHUNK_ELEMENTS = 1 << 20


def write_file(
    path: Path,
    writer: GGUFWriter,
    tensors: Sequence[Tensor],
    *,
    progress: Callable[[int], None],
    release: Callable[[], None],
) -> None:
    """Write the keys that `writer` holds, then the tensors; `progress` gets elements, `release` follows each piece."""
    import gguf

    for tensor in tensors:
        kind = gguf.GGMLQuantizationType[tensor.kind]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), _nbytes(tensor), raw_dtype=kind)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
    with path.open("ab") as file:
        for tensor in tensors:
            _pad(file, writer.data_alignment)
            _write(file, tensor, release=release)
            progress(int(np.prod(tensor.shape)))
        _pad(file, writer.data_alignment)
        file.flush()
        os.fsync(file.fileno())


def _write(file: IO[bytes], tensor: Tensor, *, release: Callable[[], None]) -> None:
    count = tensor.shape[0]
    unit = tensor.head or 1
    step = max(1, _CHUNK_ELEMENTS // (unit * int(np.prod(tensor.shape[1:])))) * unit
    for first in range(0, count, step):
        rows = tensor.rows.read(first, min(first + step, count))
        file.write(np.ascontiguousarray(woven(rows, tensor.head)).data)
        release()


def woven(rows: RowArray, head: int) -> RowArray:
    """Put the halves of each head's rows in turn, [whole heads, width]: row i of the second after row i of the first.

    Llama's original rotary positions turn neighbours; transformers turns halves. Without `head` nothing changes.
    """
    if not head:
        return rows
    return rows.reshape(-1, 2, head // 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _nbytes(tensor: Tensor) -> int:
    import gguf

    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.kind]]
    return int(np.prod(tensor.shape)) // int(elements) * int(size)


def _pad(file: IO[bytes], alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))
