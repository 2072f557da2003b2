"""The plan of a GGUF file: its keys, and where each tensor is stored in a pack's weights file.

The export puts this small JSON file into the pack, so that the GGUF file can be built from the pack alone, without a
checkpoint or a training framework. The vocabulary is left out, because it is read from the pack's tokenizer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta, to_builtins

from edgedecode.errors import ExportError, ManifestError, cause
from edgedecode.gguf.fields import FORMATS
from edgedecode.typed_json import Count, JsonValue, Positive, typed

from ..graph.quantize import Scheme
from ..graph.weights_file import Weights
from .row_source import ArrayRows, BlockPiece, BlockRows, Rows
from .tensors import Tensor

if TYPE_CHECKING:
    from gguf import GGUFWriter

VERSION = 1
_BLOCK_TYPES = {"Q4_0": Scheme(4, 32), "Q8_0": Scheme(8, 32)}
VOCABULARY_KEYS = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges"))
"""Large arrays that are read from the pack's tokenizer."""
_Type = Annotated[int, Meta(ge=0, le=max(FORMATS))]
_Shape = Annotated[tuple[Positive, ...], Meta(min_length=1, max_length=4)]
"""GGML_MAX_DIMS of ggml.h is 4."""


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A key's value and ggml's number of its type; `element` is the type of an array's elements, if not implied."""

    type: _Type
    value: bool | int | float | str | list[bool | int | float | str]
    element: _Type | None = None


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """Where a tensor's data is stored.

    A matrix in blocks has pieces, each with its number of `rows` and the offsets of its levels (`packed`) and `scales`.
    A float32 tensor is at an `offset` of the weights file, or stored here (`values`). head: as in `Tensor`.
    """

    shape: _Shape
    type: str
    head: Count = 0
    rows: tuple[Count, ...] = ()
    packed: tuple[Count, ...] = ()
    scales: tuple[Count, ...] = ()
    offset: Count | None = None
    values: bytes = b""

    def __post_init__(self) -> None:
        if not len(self.rows) == len(self.packed) == len(self.scales):
            raise ValueError("its rows, packed and scales have different lengths: export the pack again")

    @property
    def pieces(self) -> tuple[BlockPiece, ...]:
        return tuple(map(BlockPiece, self.rows, self.packed, self.scales))

    def source(self, weights: Path) -> Rows:
        """Return the source of the tensor's rows."""
        if self.type in _BLOCK_TYPES:
            return BlockRows(weights, _BLOCK_TYPES[self.type], self.shape[1], self.pieces)
        count = prod(self.shape)
        if self.offset is None:
            return ArrayRows(np.frombuffer(self.values, np.float32, count=count).reshape(self.shape))
        return ArrayRows(np.fromfile(weights, np.float32, count=count, offset=self.offset).reshape(self.shape))

    def check(self, name: str, *, file_nbytes: int) -> None:
        """Raise ManifestError unless the tensor is valid and within a weights file of this size."""
        if self.type not in (*_BLOCK_TYPES, "F32"):
            raise ManifestError(f"the GGUF plan has the tensor {name} of type {self.type}: export the pack again")
        count = prod(self.shape)
        if self.type == "F32":
            complete = len(self.values) == 4 * count if self.offset is None else self.offset + 4 * count <= file_nbytes
            shaped = True
        else:
            scheme, columns = _BLOCK_TYPES[self.type], self.shape[-1]
            complete = all(_end(piece, scheme, columns) <= file_nbytes for piece in self.pieces)
            shaped = (
                len(self.shape) == 2
                and columns % scheme.block_size == 0
                and sum(piece.rows for piece in self.pieces) == self.shape[0]
            )
        permutable = self.head == 0 or (self.head % 2 == 0 and self.shape[0] % self.head == 0)
        if not (complete and shaped and permutable):
            raise ManifestError(f"the GGUF plan's tensor {name} does not fit the weights file: export the pack again")


@dataclass(frozen=True, slots=True)
class GgufPlan:
    """Everything in a file except its vocabulary, in the file's order. rows: the vocabulary's size."""

    architecture: str
    rows: Positive
    keys: Mapping[str, PlannedKey | None]
    """None: read from the tokenizer."""
    tensors: Mapping[str, PlannedTensor]

    def __post_init__(self) -> None:
        unknown = [name for name, key in self.keys.items() if key is None and name not in VOCABULARY_KEYS]
        unknown += [name for name in (*self.keys, *self.tensors) if not name.isprintable()]
        if unknown:
            raise ValueError(f"{unknown[0][:80]!r} is no name of a key or tensor")

    def located(self, weights: Path) -> list[Tensor]:
        """Return the tensors, read from a weights file. Raises ManifestError if one is not within it."""
        file_nbytes = weights.stat().st_size
        for name, tensor in self.tensors.items():
            tensor.check(name, file_nbytes=file_nbytes)
        return [
            Tensor(name, tensor.shape, tensor.source(weights), tensor.head) for name, tensor in self.tensors.items()
        ]

    def to_json(self) -> str:
        """Return one line of JSON, in the file's order, without default values."""
        value = to_builtins(self)
        default = to_builtins(PlannedTensor((), ""))
        for name, tensor in value["tensors"].items():
            value["tensors"][name] = {key: each for key, each in tensor.items() if each != default[key]}
        return json.dumps({"version": VERSION, **value}, ensure_ascii=False, separators=(",", ":")) + "\n"

    @classmethod
    def load(cls, path: Path) -> "GgufPlan":
        """Read a plan. Raises ManifestError that names the fault."""
        try:
            value: JsonValue = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ManifestError(
                f"the GGUF plan {path} cannot be read ({cause(error)}): export the pack again"
            ) from None
        version = value.get("version") if isinstance(value, dict) else None
        if version != VERSION:
            raise ManifestError(f"the GGUF plan {path} has version {version}, not {VERSION}: upgrade edgedecode")
        try:
            return typed(value, cls, "the GGUF plan")
        except ValueError as error:
            raise ManifestError(f"{error}: export the pack again") from None


def _end(piece: BlockPiece, scheme: Scheme, columns: int) -> int:
    """Return the offset after a piece's last byte."""
    count = piece.rows * columns
    return max(piece.packed + count * scheme.bits // 8, piece.scales + 4 * (count // scheme.block_size))


Vectors: TypeAlias = Mapping[int, bytes]
"""The float32 vectors of a weights file, by offset."""


def vectors_in(weights: Weights, file: Path) -> Vectors:
    """Read the vectors of a weights file."""
    found = [each for each in weights.extents().values() if each.spec.dtype == "float32" and len(each.spec.shape) == 1]
    content = np.memmap(file, np.uint8, mode="r")
    return {each.offset: content[each.offset : each.offset + each.spec.nbytes].tobytes() for each in found}


def make_plan(writer: "GGUFWriter", tensors: Sequence[Tensor], *, rows: int, vectors: Vectors) -> GgufPlan:
    """Return the plan for these keys and tensors. Raises ExportError for matrices that are not stored in blocks."""
    (written,) = writer.kv_data
    keys = {
        name: None
        if name in VOCABULARY_KEYS
        else PlannedKey(int(value.type), _plain(value.value), None if value.sub_type is None else int(value.sub_type))
        for name, value in written.items()
    }
    return GgufPlan(writer.arch, rows, keys, {tensor.name: _planned(tensor, vectors) for tensor in tensors})


def _planned(tensor: Tensor, vectors: Vectors) -> PlannedTensor:
    shape, kind, rows = tensor.shape, tensor.kind, tensor.rows
    if isinstance(rows, BlockRows):
        counts, packed, scales = zip(*((piece.rows, piece.packed, piece.scales) for piece in rows.pieces), strict=True)
        return PlannedTensor(shape, kind, tensor.head, counts, packed, scales)
    if not isinstance(rows, ArrayRows):
        raise ExportError(f"the pack stores {tensor.name} as {kind}, but a GGUF plan needs quantized blocks")
    values = np.ascontiguousarray(rows.values, np.float32).tobytes()
    places = ((start, data.find(values)) for start, data in vectors.items())
    offset = next((start + place for start, place in places if place >= 0 and place % 4 == 0), None)
    return PlannedTensor(shape, kind, tensor.head, offset=offset, values=b"" if offset is not None else values)


def _plain(value: Any) -> Any:  # noqa: ANN401  (any type that the writer accepts)
    """Convert a key's value to JSON types, from enums and numpy scalars too."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if isinstance(value, (float, np.floating)) else str(value)
