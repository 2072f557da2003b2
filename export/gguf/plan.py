"""A GGUF file that is not there yet: its keys, and for each tensor where its numbers lie in a pack's weights file.

Small JSON that an export puts into the pack, so that the file can be made from the pack alone, without a checkpoint or
a training framework. The vocabulary is left out, which the pack's tokenizer tells. Writes no tensor.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from edgedecode.errors import ExportError, ManifestError
from edgedecode.typed_json import JsonValue

from ..graph.quantize import Scheme
from ..graph.weights_file import Weights
from ..json_fields import Fields
from .row_source import ArrayRows, BlockPiece, BlockRows, Rows
from .tensors import Tensor

if TYPE_CHECKING:
    from gguf import GGUFWriter

__all__ = ["PLAN_FILE", "GgufPlan", "Vectors", "make_plan"]

PLAN_FILE = "gguf.json"
VERSION = 1
_ARRAY_KINDS = {"Q4_0": Scheme(4, 32), "Q8_0": Scheme(8, 32)}
VOCABULARY_KEYS = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges"))
"""What the pack's tokenizer tells, and is large."""


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A key's value and ggml's number of its type; `element` is that of an array's elements where it is not implied."""

    kind: int
    value: JsonValue
    element: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A matrix in blocks (`pieces`), or float32 numbers, at an `offset` of the weights file or as bytes (`values`)."""

    shape: tuple[int, ...]
    kind: str
    head: int = 0
    pieces: tuple[BlockPiece, ...] = ()
    offset: int | None = None
    values: bytes = b""

    def rows(self, weights: Path) -> Rows:
        """Return what reads its rows. Raises ManifestError where the plan reaches beyond the weights file."""
        if self.kind in _ARRAY_KINDS:
            return BlockRows(weights, _ARRAY_KINDS[self.kind], self.shape[1], self.pieces)
        count = int(np.prod(self.shape))
        if self.offset is None:
            return ArrayRows(np.frombuffer(self.values, np.float32, count=count).reshape(self.shape))
        return ArrayRows(np.fromfile(weights, np.float32, count=count, offset=self.offset).reshape(self.shape))

    def check(self, name: str, *, file_nbytes: int) -> None:
        """Raise ManifestError unless all of it lies in a weights file of this size."""
        if not self.shape or self.kind not in (*_ARRAY_KINDS, "F32"):
            raise ManifestError(f"the GGUF plan has the tensor {name} of type {self.kind}: export the pack again")
        count = int(np.prod(self.shape))
        if self.kind == "F32":
            whole = len(self.values) == 4 * count if self.offset is None else self.offset + 4 * count <= file_nbytes
            even = True
        else:
            scheme, columns = _ARRAY_KINDS[self.kind], self.shape[-1]
            whole = all(_ends(piece, scheme, columns) <= file_nbytes for piece in self.pieces)
            even = (
                len(self.shape) == 2
                and columns % scheme.block_size == 0
                and sum(piece.rows for piece in self.pieces) == self.shape[0]
            )
        woven = self.head == 0 or (self.head % 2 == 0 and self.shape[0] % self.head == 0)
        if not whole or not even or not woven:
            raise ManifestError(f"the GGUF plan's tensor {name} does not fit the weights file: export the pack again")


@dataclass(frozen=True, slots=True)
class GgufPlan:
    """Everything of a file but its vocabulary, in the file's order. rows: how many tokens that vocabulary has."""

    architecture: str
    rows: int
    keys: Mapping[str, PlannedKey | None]
    """None: the vocabulary's."""
    tensors: Mapping[str, PlannedTensor]

    def located(self, weights: Path) -> list[Tensor]:
        """Return the tensors over a weights file. Raises ManifestError where one does not lie in it."""
        file_nbytes = weights.stat().st_size
        for name, tensor in self.tensors.items():
            tensor.check(name, file_nbytes=file_nbytes)
        return [Tensor(name, tensor.shape, tensor.rows(weights), tensor.head) for name, tensor in self.tensors.items()]

    def to_json(self) -> str:
        """Render in one line, in the file's order."""
        keys: dict[str, JsonValue] = {
            name: None if key is None else {"type": key.kind, "value": key.value, "element": key.element}
            for name, key in self.keys.items()
        }
        tensors: dict[str, JsonValue] = {name: _tensor_json(tensor) for name, tensor in self.tensors.items()}
        value = {"version": VERSION, "architecture": self.architecture, "rows": self.rows}
        return json.dumps({**value, "keys": keys, "tensors": tensors}, ensure_ascii=False, separators=(",", ":")) + "\n"

    @classmethod
    def load(cls, path: Path) -> GgufPlan:
        """Read a plan. Raises ManifestError naming what is wrong."""
        try:
            top = Fields.of(json.loads(path.read_text(encoding="utf-8")), "the GGUF plan")
        except (OSError, ValueError, RecursionError) as error:
            raise ManifestError(f"the GGUF plan {path} cannot be read ({error}): export the pack again") from None
        if (version := top.integer("version", low=1)) > VERSION:
            raise ManifestError(f"the GGUF plan {path} has version {version}, not {VERSION}: upgrade edgedecode")
        keys = top.child("keys")
        return cls(
            architecture=top.text("architecture"),
            rows=top.integer("rows", low=1),
            keys={name: _key(keys, name) for name in keys.values},
            tensors={name: _tensor(child) for name, child in top.children("tensors")},
        )


def _ends(piece: BlockPiece, scheme: Scheme, columns: int) -> int:
    """Return the offset behind a piece's last byte."""
    count = piece.rows * columns
    return max(piece.packed + count * scheme.bits // 8, piece.scales + 4 * (count // scheme.block_size))


def _key(keys: Fields, name: str) -> PlannedKey | None:
    if keys.values[name] is None:
        return None
    child = keys.child(name)
    if "value" not in child.values:
        raise ManifestError(f"{child.where} has no 'value'")
    return PlannedKey(child.integer("type", low=0), child.values["value"], child.optional_integer("element"))


def _tensor_json(tensor: PlannedTensor) -> JsonValue:
    value: dict[str, JsonValue] = {"shape": [*tensor.shape], "type": tensor.kind}
    if tensor.head:
        value["head"] = tensor.head
    if tensor.pieces:
        for name in ("rows", "packed", "scales"):
            value[name] = [getattr(piece, name) for piece in tensor.pieces]
    elif tensor.offset is not None:
        value["offset"] = tensor.offset
    else:
        value["values"] = base64.b64encode(tensor.values).decode("ascii")
    return value


def _tensor(fields: Fields) -> PlannedTensor:
    try:
        values = base64.b64decode(fields.optional_text("values") or "", validate=True)
    except binascii.Error:
        raise ManifestError(f"{fields.where}.values is not base64: export the pack again") from None
    pieces: tuple[BlockPiece, ...] = ()
    if "rows" in fields.values:
        columns = [fields.integers(name) for name in ("rows", "packed", "scales")]
        if len({len(column) for column in columns}) != 1:
            raise ManifestError(f"{fields.where} has pieces of different kinds: export the pack again")
        pieces = tuple(map(BlockPiece, *columns))
    return PlannedTensor(
        shape=fields.integers("shape"),
        kind=fields.text("type"),
        head=fields.optional_integer("head") or 0,
        pieces=pieces,
        offset=fields.optional_integer("offset"),
        values=values,
    )


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
        else PlannedKey(int(value.type), _plain(value.value), None if value.sub_type is None else int(value.sub_type))
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
