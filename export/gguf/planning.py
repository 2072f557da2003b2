"""Makes the plan of a GGUF file from what would be written into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from edgedecode.errors import ExportError
from edgedecode.pack.json_fields import JsonValue

from ..graph.weights_file import Weights
from .blocks import BlockRows
from .plan import GgufPlan, PlannedKey, PlannedTensor
from .rows import ArrayRows
from .tensors import Tensor

if TYPE_CHECKING:
    from gguf import GGUFWriter

__all__ = ["VOCABULARY_KEYS", "Vectors", "make_plan"]

VOCABULARY_KEYS = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges"))
"""What the pack's tokenizer tells, and is large."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The float32 vectors of a weights file: where each begins, and its bytes."""

    found: tuple[tuple[int, bytes], ...]

    @classmethod
    def of(cls, weights: Weights, file: Path) -> Vectors:
        return cls(tuple(_vectors(weights, file)))

    def offset(self, values: bytes) -> int | None:
        """Return where these very bytes lie, whole numbers into a vector or not; None: nowhere."""
        for start, data in self.found:
            place = data.find(values)
            if place >= 0 and place % 4 == 0:
                return start + place
        return None


def make_plan(writer: GGUFWriter, tensors: Sequence[Tensor], *, rows: int, vectors: Vectors) -> GgufPlan:
    """Plan the file of these keys and tensors. Raises ExportError for numbers that are not blocks of the pack."""
    (written,) = writer.kv_data
    keys = {
        name: None
        if name in VOCABULARY_KEYS
        else PlannedKey(
            int(value.type),
            _plain(value.value),
            None if value.sub_type is None else int(value.sub_type),
        )
        for name, value in written.items()
    }
    return GgufPlan(writer.arch, rows, keys, {tensor.name: _planned(tensor, vectors) for tensor in tensors})


def _planned(tensor: Tensor, vectors: Vectors) -> PlannedTensor:
    if isinstance(tensor.rows, BlockRows):
        return PlannedTensor(tensor.shape, tensor.kind, tensor.head, tensor.rows.pieces)
    if not isinstance(tensor.rows, ArrayRows):
        raise ExportError(f"the pack holds {tensor.name} as {tensor.kind}, a GGUF file is made of blocks only")
    values = np.ascontiguousarray(tensor.rows.values, np.float32).tobytes()
    offset = vectors.offset(values)
    inline = b"" if offset is not None else values
    return PlannedTensor(tensor.shape, tensor.kind, tensor.head, offset=offset, values=inline)


def _vectors(weights: Weights, file: Path) -> Iterator[tuple[int, bytes]]:
    with file.open("rb") as source:
        for extent in weights.extents().values():
            if extent.spec.dtype == "float32" and len(extent.spec.shape) == 1:
                source.seek(extent.offset)
                yield extent.offset, source.read(extent.spec.nbytes)


def _plain(value: object) -> JsonValue:
    """Return a key's value in JSON's types: enumerations and numpy's numbers become what they stand for."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if isinstance(value, (float, np.floating)) else str(cast(str, value))
