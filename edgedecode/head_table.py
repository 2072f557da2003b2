"""Where a model's head lies in its weights file, and its rows as numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.decoding.arrays import FloatArray, IntArray
from edgedecode.errors import ManifestError
from edgedecode.pack.json_fields import Fields

__all__ = ["HEAD_PROPERTY", "HeadLayout", "HeadTable", "StoredArray"]

HEAD_PROPERTY = "edgedecode.head"
"""The property of a graph that holds its `HeadLayout`."""
KINDS = ("uint8", "float16", "float32")

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array of a weights file; `kind` is uint8, float16 or float32."""

    kind: str
    offset: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, fields: Fields) -> StoredArray:
        """Check a parsed array. Raises ManifestError."""
        kind = fields.text("kind")
        if kind not in KINDS:
            raise ManifestError(f"{fields.where}.kind must be one of {', '.join(KINDS)}, not {kind[:20]!r}")
        return cls(kind, fields.integer("offset", low=0), fields.integers("shape"))

    def open(self, weights: Path) -> Numbers:
        """Map it, read-only. Raises ManifestError where the file is too short or cannot be read."""
        try:
            return np.asarray(np.memmap(weights, self.kind, mode="r", offset=self.offset, shape=self.shape))
        except (OSError, OverflowError, ValueError) as error:
            raise ManifestError(f"{weights} does not hold the head ({error}): run `edgedecode trim` again") from None


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """A head of `rows` ids and as many `columns` as the hidden state has.

    Blocks: `values` are uint8 [rows, columns · bits / 8], the even columns of 4 bits in the low halves; `scales` are
    [rows, blocks], and `zero_points` uint8 [rows, bytes] or, for the middle of the range, none. Floats: `values` are
    [rows, columns], or [columns, rows] if `transposed`.
    """

    rows: int
    columns: int
    bits: int
    block_size: int
    """0: floats."""
    values: StoredArray
    scales: StoredArray | None = None
    zero_points: StoredArray | None = None
    transposed: bool = False

    @classmethod
    def parse(cls, text: str, where: str) -> HeadLayout:
        """Read what `to_json` made. Raises ManifestError naming `where`."""
        try:
            fields = Fields.of(json.loads(text), where)
        except (RecursionError, ValueError):
            raise ManifestError(f"{where} is not JSON: run `edgedecode trim` again") from None
        layout = cls(
            rows=fields.integer("rows", low=1),
            columns=fields.integer("columns", low=1),
            bits=fields.integer("bits", low=1),
            block_size=fields.integer("block_size", low=0),
            values=StoredArray.of(fields.child("values")),
            scales=_optional(fields, "scales"),
            zero_points=_optional(fields, "zero_points"),
            transposed=fields.values.get("transposed") is True,
        )
        if {name: getattr(layout, name) for name in ("values", "scales", "zero_points")} != layout._wanted():
            raise ManifestError(f"{where} speaks of arrays that are not a head: run `edgedecode trim` again")
        return layout

    def to_json(self) -> str:
        """Return it in one line."""
        return json.dumps(asdict(self))

    def _wanted(self) -> Mapping[str, StoredArray | None]:
        """Return the arrays in the shapes that they must have."""
        values, scales, zeros = self.values, self.scales, self.zero_points
        if not self.block_size:
            sizes = (self.columns, self.rows) if self.transposed else (self.rows, self.columns)
            return {"values": _shaped(values, sizes, kinds=KINDS[1:]), "scales": None, "zero_points": None}
        if self.bits not in (4, 8) or self.columns % self.block_size or scales is None:
            return {}
        blocks = self.columns // self.block_size
        return {
            "values": _shaped(values, (self.rows, self.columns * self.bits // 8), kinds=KINDS[:1]),
            "scales": _shaped(scales, (self.rows, blocks), kinds=KINDS[1:]),
            "zero_points": zeros and _shaped(zeros, (self.rows, -(-blocks * self.bits // 8)), kinds=KINDS[:1]),
        }


class HeadTable:
    """The rows of a head, mapped from the weights file. Only the pages of rows that are read become resident."""

    def __init__(self, layout: HeadLayout, weights: Path) -> None:
        self.layout = layout
        self._values = layout.values.open(weights)
        self._scales = None if layout.scales is None else layout.scales.open(weights)
        self._zero_points = None if layout.zero_points is None else layout.zero_points.open(weights)

    def read(self, ids: IntArray, out: FloatArray) -> None:
        """Write the rows of `ids` into `out`, [ids, columns], contiguous: what they stand for, not what is stored.

        On the way it takes as much again as `out`.
        """
        layout = self.layout
        if self._scales is None:
            out[:] = self._values.take(ids, axis=1).T if layout.transposed else self._values.take(ids, axis=0)
            return
        _unpack(self._values.take(ids, axis=0), out, bits=layout.bits)
        blocks = out.reshape(len(ids), -1, layout.block_size)
        if self._zero_points is None:
            out -= np.float32(1 << (layout.bits - 1))
        else:
            stored = self._zero_points.take(ids, axis=0)
            zeros = np.empty((len(ids), stored.shape[1] * 8 // layout.bits), np.float32)
            _unpack(stored, zeros, bits=layout.bits)
            blocks -= zeros[:, : blocks.shape[1], None]
        blocks *= self._scales.take(ids, axis=0)[:, :, None]


def _unpack(packed: Numbers, out: FloatArray, *, bits: int) -> None:
    """Write the integers of `packed` into `out`."""
    if bits == 8:
        out[:] = packed
    else:
        out[:, 0::2] = packed & 15
        out[:, 1::2] = packed >> 4


def _optional(fields: Fields, key: str) -> StoredArray | None:
    return None if fields.values.get(key) is None else StoredArray.of(fields.child(key))


def _shaped(array: StoredArray, shape: tuple[int, ...], *, kinds: tuple[str, ...]) -> StoredArray | None:
    """Return the array in a shape; None where it is of another kind."""
    return StoredArray(array.kind, array.offset, shape) if array.kind in kinds else None
