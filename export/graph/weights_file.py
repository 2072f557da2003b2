"""One model's weights file: its contents and layout, and writing it as a stream.

Graphs refer to its tensors by name; several names may refer to the same bytes.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .error_feedback import Inputs
from .quantize import Scheme
from .recipe import projection_name
from .weight_bytes import BlockWeight, FloatWeight, Matrix, TensorSpec

_PAGE = 4096
_LINE = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """A tensor and its offset in the weights file."""

    spec: TensorSpec
    offset: int


class Weights:
    """The stored weights of a file. A weight used several times is stored once."""

    def __init__(self) -> None:
        self._stored: dict[object, BlockWeight | FloatWeight] = {}
        self._aliases: dict[TensorSpec, TensorSpec] = {}

    def plain(self, name: str, source: Matrix, *, shape: tuple[int, ...], bits: int = 32) -> TensorSpec:
        """Add a float tensor in its original orientation, or return the one already added for this source."""
        key = ("plain", source.identity, bits)
        return self._stored.setdefault(key, FloatWeight(name, source, shape, bits)).tensors[0]

    def transposed(self, name: str, source: Matrix, *, bits: int = 32) -> TensorSpec:
        """Add a projection's float weight as [columns, rows], or return the one already added for this source."""
        key = ("transposed", source.identity, bits)
        return self._stored.setdefault(
            key, FloatWeight(name, source, (source.columns, source.rows), bits, transposed=True)
        ).tensors[0]

    def blocks(self, name: str, source: Matrix, *, scheme: Scheme) -> BlockWeight:
        """Add a quantized weight, or return the one already added for this source and scheme."""
        key = ("blocks", source.identity, scheme)
        weight = self._stored.setdefault(key, BlockWeight(name, source, scheme))
        assert isinstance(weight, BlockWeight)
        return weight

    def alias(self, name: str, of: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
        """Add a second name and shape for a tensor's bytes."""
        spec = TensorSpec(name, of.dtype, shape)
        assert spec.nbytes == of.nbytes
        self._aliases[spec] = of
        return spec

    def names(self) -> set[str]:
        """Return the names, as in `projection_name`, of the quantized weights."""
        return {projection_name(weight.name) for weight in self._stored.values() if isinstance(weight, BlockWeight)}

    def calibrate(self, inputs: Mapping[str, Inputs]) -> None:
        """Set what is known of the quantized weights' inputs, by `projection_name`."""
        for key, weight in self._stored.items():
            if isinstance(weight, BlockWeight):
                self._stored[key] = replace(weight, inputs=inputs.get(projection_name(weight.name)))

    @property
    def stored(self) -> Collection[BlockWeight | FloatWeight]:
        """The weights that make up the file, without duplicates."""
        return self._stored.values()

    @property
    def elements(self) -> int:
        """Number of elements to read, the unit of progress."""
        return sum(weight.source.rows * weight.source.columns for weight in self._stored.values())

    @property
    def nbytes(self) -> int:
        return max((extent.offset + extent.spec.nbytes for extent in self.extents().values()), default=0)

    def extents(self) -> Mapping[str, Extent]:
        """Lay out the tensors in the order they were added, aligned to pages if large, else to cache lines."""
        found: dict[str, Extent] = {}
        offset = 0
        for spec in (spec for weight in self._stored.values() for spec in weight.tensors):
            alignment = _PAGE if spec.nbytes >= _PAGE else _LINE
            offset = -(-offset // alignment) * alignment
            found[spec.name] = Extent(spec, offset)
            offset += spec.nbytes
        for alias, spec in self._aliases.items():
            found[alias.name] = Extent(alias, found[spec.name].offset)
        return found

    def write(self, path: Path, *, progress: Callable[[int], None], release: Callable[[], None]) -> None:
        """Stream all weights to `path`, reporting elements written to `progress`; call `release` after each piece."""
        extents = self.extents()
        with path.open("wb") as file:
            for weight in self._stored.values():
                for piece in weight.pieces():
                    file.seek(extents[piece.name].offset + piece.offset)
                    file.write(np.ascontiguousarray(piece.values).data)
                    release()
                progress(weight.source.rows * weight.source.columns)
            file.truncate(self.nbytes)
            file.flush()
            os.fsync(file.fileno())
