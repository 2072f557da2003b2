"""Read embedding rows from a GGUF file for a trimmed draft, whose own file lacks most of them.

A trimmed draft's file holds only the rows of the ids it can generate, but its input may be any id. Rows are read from
the full draft's file on demand: the table is not kept in this process, and the system's page cache keeps frequent rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias
from weakref import finalize

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError, ManifestError, RuntimeUnavailable
from edgedecode.gguf.contents import Contents
from edgedecode.gguf.encoding import F32
from edgedecode.gguf.header import EMBEDDING

from .llama_log import Untyped

FLOAT_NBYTES = 4
TABLE_NBYTES = 4 * 2**20
"""Memory besides the rows: ggml's library loaded under a second name, header texts, the first pass (measured: 2 to
3.2 MiB)."""
COPIES = 4
"""Copies of a pass's rows: ours, and three in the engine on the way to its graph."""
DECODERS = {
    1: "ggml_fp16_to_fp32_row",
    2: "dequantize_row_q4_0",
    3: "dequantize_row_q4_1",
    6: "dequantize_row_q5_0",
    7: "dequantize_row_q5_1",
    8: "dequantize_row_q8_0",
    10: "dequantize_row_q2_K",
    11: "dequantize_row_q3_K",
    12: "dequantize_row_q4_K",
    13: "dequantize_row_q5_K",
    14: "dequantize_row_q6_K",
    16: "dequantize_row_iq2_xxs",
    17: "dequantize_row_iq2_xs",
    18: "dequantize_row_iq3_xxs",
    19: "dequantize_row_iq1_s",
    20: "dequantize_row_iq4_nl",
    21: "dequantize_row_iq3_s",
    22: "dequantize_row_iq2_s",
    23: "dequantize_row_iq4_xs",
    29: "dequantize_row_iq1_m",
    30: "ggml_bf16_to_fp32_row",
    34: "dequantize_row_tq1_0",
    35: "dequantize_row_tq2_0",
    39: "dequantize_row_mxfp4",
}
"""ggml's functions by tensor type, each with the arguments (blocks, values, number of values), as its look-up uses."""

Decoder: TypeAlias = Callable[[int, int, int], object]


def fed_row_nbytes(contents: Contents) -> int:
    """Return the bytes per row in a pass that takes embedding rows instead of ids."""
    tensor = contents.tensors[EMBEDDING]
    width, rows = tensor.shape
    return COPIES * FLOAT_NBYTES * width + tensor.nbytes // rows


class EmbeddingTable:
    """The embedding of the file at `path`, whose contents were read and checked. One thread at a time may read from it.

    scale: factor for every row, for architectures that scale only rows looked up by id. Raises CapabilityError for a
    tensor type that the engine cannot decode, ManifestError if the file cannot be read.
    """

    def __init__(self, path: Path, contents: Contents, *, library: Untyped) -> None:
        tensor = contents.tensors[EMBEDDING]
        self.width, self.rows = tensor.shape
        self.scale = 1.0
        self.start = contents.start + tensor.offset
        self.stored_nbytes = tensor.nbytes // self.rows
        """Bytes per row in the file."""
        self.row_nbytes = fed_row_nbytes(contents)
        """Bytes per row in a pass."""
        self.decoder = _decoder(library, tensor.type, path=path)
        try:
            self.file = path.open("rb", buffering=0)
        except OSError as error:
            raise ManifestError(f"{path} cannot be read ({error.strerror or error}): export the pack again") from None
        self.close = finalize(self, self.file.close)


class RowReader:
    """Reads rows of a table into the first rows of `out`, [most rows, width], which it keeps alive."""

    def __init__(self, table: EmbeddingTable, out: FloatArray) -> None:
        self._table, self._out = table, out
        stored = out.view(np.uint8)
        if table.decoder is not None:
            stored = np.empty((len(out), table.stored_nbytes), np.uint8)
        self._views = [row.data for row in stored]  # these keep the array alive
        self._addresses = stored.ctypes.data, out.ctypes.data

    def read(self, tokens: Sequence[int]) -> None:
        """Read the rows of these ids, each below the table's `rows`. Raises RuntimeUnavailable if the file is gone."""
        table = self._table
        file, start, nbytes = table.file, table.start, table.stored_nbytes
        for view, token in zip(self._views, tokens, strict=False):
            try:
                file.seek(start + int(token) * nbytes)
                count = file.readinto(view)
            except OSError as error:
                reason = error.strerror or error
                raise RuntimeUnavailable(f"{file.name} cannot be read any more ({reason}): start again") from None
            if count != nbytes:
                raise RuntimeUnavailable(f"{file.name} became shorter while in use: restore it and start again")
        if table.decoder is not None:
            table.decoder(*self._addresses, len(tokens) * table.width)
        if table.scale != 1.0:
            self._out[: len(tokens)] *= np.float32(table.scale)


def _decoder(library: Untyped, kind: int, *, path: Path) -> Decoder | None:
    """Return the function that dequantizes a tensor type's blocks; None for float32."""
    if kind == F32:
        return None
    native: Untyped = getattr(library, DECODERS.get(kind, f"dequantize_row_{kind}"), None)
    if native is None:
        raise CapabilityError(
            f"{path} has an embedding of the tensor type {kind}, which this llama.cpp cannot decode by row: use "
            f"--runtime onnx"
        )
    native.argtypes, native.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    decode: Decoder = native
    return decode
