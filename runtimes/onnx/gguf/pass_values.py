"""What a GGUF file's graph reads in each pass besides tokens: rows of a table for all layers, and of rotary tables.

The table (Gemma 4's per-layer embeddings) is half of such a file's bytes, and a pass needs a few rows of it: they are
read from the file, and the table is never in memory.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from weakref import finalize

import numpy as np

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import ManifestError
from edgedecode.gguf.architectures import PER_LAYER_TABLE
from edgedecode.gguf.contents import BLOCKS

from ..graph_session import LAYER_ROWS, ROTARY, ROW_NUMBERS
from ..kernels.block_types import floats_of
from ..onnx_engine import Untyped
from .metadata import read_metadata
from .rotation import FACTORS, rotary_frequencies, rotated

_ROWS = 8
"""Rows that are unpacked at one time."""


class PassValues:
    """Binds them. inputs: the graph's. Owns an open file; methods raise ManifestError if it is damaged."""

    def __init__(self, path: Path, inputs: Sequence[str]) -> None:
        metadata = read_metadata(path)
        contents = metadata.contents
        self._path, self._file = path, open(path, "rb", buffering=0)  # noqa: SIM115
        self.close = finalize(self, self._file.close)
        self._bound: list[object] = []
        self._table = contents.tensors[PER_LAYER_TABLE] if LAYER_ROWS in inputs else None
        self._start, self._factor = contents.start, np.float32(math.sqrt(metadata.per_layer / 2))
        factors = {
            name: np.frombuffer(self._read(tensor.offset, tensor.nbytes), "<f4").astype(np.float64)
            for name in FACTORS
            if (tensor := contents.tensors.get(name)) is not None
        }
        self._rotations = {
            window: rotary_frequencies(metadata, factors, window=bool(window))
            for window in ("", ".window")
            if f"{ROTARY[0]}{window}" in inputs
        }

    def bind(self, binding: Untyped, tokens: Sequence[int], positions: IntArray) -> None:
        """Bind the rows of a pass's tokens, at their positions."""
        values: dict[str, FloatArray | IntArray] = {}
        if self._table is not None:
            values[LAYER_ROWS] = self._layer_rows(tokens)
        for window, rotation in self._rotations.items():
            for name, table in zip(ROTARY, rotated(positions, *rotation), strict=True):
                values[f"{name}{window}"] = table
        if self._rotations:
            values[ROW_NUMBERS] = np.arange(len(tokens), dtype=np.int64)[None]
        for name, array in values.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._bound = list(values.values())  # the binding has their addresses only

    def _layer_rows(self, tokens: Sequence[int]) -> FloatArray:
        """Return the table's rows, [1, tokens, layers · values], by the root of their size and 2, as llama.cpp adds."""
        table = self._table
        assert table is not None
        block, nbytes = BLOCKS[table.type]
        row = table.shape[0] // block * nbytes
        found = np.empty((1, len(tokens), table.shape[0]), np.float32)
        for start in range(0, len(tokens), _ROWS):
            here = tokens[start : start + _ROWS]
            data = b"".join(self._read(table.offset + token * row, row) for token in here)
            values = floats_of(table.type, np.frombuffer(data, np.uint8).reshape(len(here), row))
            np.multiply(values, self._factor, out=found[0, start : start + len(here)])
        if not np.isfinite(found).all():
            raise ManifestError(f"{self._path} has values in {table.name} that are not finite: download it again")
        return found

    def _read(self, offset: int, nbytes: int) -> bytes:
        self._file.seek(self._start + offset)
        data = self._file.read(nbytes)
        if len(data) != nbytes:
            raise ManifestError(f"{self._path} has become shorter while it is in use: put it back")
        return data
