"""One model's weights file: what it is made of, where each tensor lies, and how it is written in a stream.

Graphs refer to its tensors by name; several names may stand for the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray

from .quantize import Scheme
from .recipe import projection_name
from .weight_bytes import BlockWeight, FloatWeight, Matrix, TensorSpec

__all__ = ["Extent", "Weights"]

_PAGE = 4096
_LINE = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """A tensor and where its bytes lie in the weights file."""

    spec: TensorSpec
    offset: int


class Weights:
    """The stored weights of a file, each kept once however often a graph asks for it."""

    def __init__(self) -> None:
        self._stored: dict[object, BlockWeight | FloatWeight] = {}
        self._aliases: dict[TensorSpec, TensorSpec] = {}

    def plain(self, name: str, source: Matrix, *, shape: tuple[int, ...], bits: int = 32) -> TensorSpec:
        """Add a float tensor kept in its own orientation; the same source again gives the first one's name."""
        key = ("plain", source.identity, bits)
        return self._stored.setdefault(key, FloatWeight(name, source, shape, bits)).tensors[0]

    def transposed(self, name: str, source: Matrix, *, bits: int = 32) -> TensorSpec:
        """Add a projection's float weight, [columns, rows]."""
        key = ("transposed", source.identity, bits)
        return self._stored.setdefault(
            key, FloatWeight(name, source, (source.columns, source.rows), bits, transposed=True)
        ).tensors[0]

    def blocks(self, name: str, source: Matrix, *, scheme: Scheme) -> BlockWeight:
        """Add a quantized weight; the same source again gives the first one's weight."""
        key = ("blocks", source.identity, scheme)
        weight = self._stored.setdefault(key, BlockWeight(name, source, scheme))
        assert isinstance(weight, BlockWeight)
        return weight

    def alias(self, name: str, of: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
        """Add a second name and shape for the bytes of a tensor."""
        spec = TensorSpec(name, of.dtype, shape)
        assert spec.nbytes == of.nbytes
        self._aliases[spec] = of
        return spec

    def weigh(self, importance: Mapping[str, FloatArray]) -> None:
        """Give the quantized weights the importance of their columns, by `projection_name`."""
        for key, weight in self._stored.items():
            if isinstance(weight, BlockWeight):
                self._stored[key] = replace(weight, importance=importance.get(projection_name(weight.name)))

    @property
    def stored(self) -> Collection[BlockWeight | FloatWeight]:
        """The weights that produce the file's bytes, each once."""
        return self._stored.values()

    @property
    def elements(self) -> int:
        """Weights to be read, the unit of progress."""
        return sum(weight.source.rows * weight.source.columns for weight in self._stored.values())

    @property
    def nbytes(self) -> int:
        return max((extent.offset + extent.spec.nbytes for extent in self.extents().values()), default=0)

    def extents(self) -> Mapping[str, Extent]:
        """Lay the tensors out: large ones on pages, small ones on cache lines, in the order they were added."""
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
        """Stream every weight into `path`; `progress` gets the elements done, `release` is called after each piece."""
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
