"""Widens a model's MLPs with units that do not change its output.

Works on the quantized graphs and their shared weights file, which is written tensor by tensor. A new unit's gate and up
weights are random with the standard deviation of the old ones, since zeros may be cheaper to multiply. The scales of
its output weights are zero, so that its contribution is exactly zero in any kernel.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from edgedecode.errors import CapabilityError
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.tensor import ExternalData, Tensor

from .mlps import Mlp, Projection, find_mlps

_UNITS = 128
"""Step of the number of units."""
_FINE = 0.01
"""If _UNITS units are more than this share of the file, the step is one block instead."""
_PAGE, _LINE = 4096, 64
"""Alignment of tensors, as in an export: large ones at a page, others at a cache line."""
_VALUE_INFO = 13
"""The graph's field with the shapes of intermediate values, which change; onnxruntime infers them."""
_FLOATS: Mapping[int, str] = {1: "<f4", 10: "<f2"}
_SEED = 0

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Region:
    """A range of the weights file, in bytes."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Growth:
    """How a tensor grows with each new unit: by rows, or by bytes at the end of every row."""

    rows: int
    """Existing rows. A unit adds a row, unless it makes every row longer."""
    unit_nbytes: float
    """Bytes that a unit adds to every row; 0 if it adds a row."""
    fill: bytes
    """Pattern of the new bytes; empty for random bytes."""

    def nbytes(self, old: int, units: int) -> int:
        """Return the new size of a tensor of `old` bytes."""
        if self.unit_nbytes:
            return old + self.rows * round(self.unit_nbytes * units)
        return old // self.rows * (self.rows + units)


class Widening:
    """A model to widen: its graphs by name, its weights file, and its number of layers.

    Raises CapabilityError if a layer of any graph has no MLP that can be widened.
    """

    def __init__(self, graphs: Mapping[str, GraphFile], weights: Path, *, layers: int, name: str) -> None:
        self._graphs = graphs
        self._name = name
        if not weights.stat().st_size:
            raise self._refusal("the weights file is empty")
        self._weights: Bytes = np.memmap(weights, np.uint8, mode="r")
        self._mlps = {key: find_mlps(graph) for key, graph in graphs.items()}
        for mlps in self._mlps.values():
            if len(mlps) != layers:
                raise CapabilityError(
                    f"{len(mlps)} of the {layers} MLPs of the {name} can be widened: --scale needs separate gate, up "
                    f"and down projections, quantized symmetrically in blocks of 4 or 8 bits"
                )
        self._regions = self._find_regions(weights.name)
        self._growths = self._find_growths()

    @property
    def parameters_of_unit(self) -> int:
        """Number of weights that one more unit in every layer adds."""
        mlps = next(iter(self._mlps.values()))
        return sum(sum(side.inputs for side in mlp.sides) + mlp.down.outputs for mlp in mlps)

    def units_for(self, nbytes: int) -> int:
        """Return the number of units to add to every layer so that the weights file comes closest to `nbytes`."""
        block = lcm(*(mlp.down.block for mlps in self._mlps.values() for mlp in mlps))
        step = lcm(block, _UNITS)
        if self.nbytes(step) - self.nbytes(0) > _FINE * nbytes:
            step = block
        enough = bisect_left(range(nbytes), nbytes, key=lambda steps: self.nbytes(steps * step))
        near = (max(0, enough - 1), enough)
        return step * min(near, key=lambda steps: abs(self.nbytes(steps * step) - nbytes))

    def nbytes(self, units: int) -> int:
        """Return the size of the weights file with `units` more units in every layer."""
        return max(place.offset + place.nbytes for place in self._places(units).values())

    def widen_graphs(self, units: int) -> dict[str, bytes]:
        """Widen the graphs in place and return their files by name. Call it only once."""
        places = self._places(units)
        return {key: self._widened_graph(graph, self._mlps[key], units, places) for key, graph in self._graphs.items()}

    def write(self, file: BinaryIO, units: int, *, progress: Callable[[int], None]) -> str:
        """Write the weights file and return its SHA-256 in hex; `progress` is called with the bytes of each piece."""
        digest, at = hashlib.sha256(), 0
        for region, place in self._places(units).items():
            for content in (bytes(place.offset - at), self._content(region, units)):
                file.write(content)
                digest.update(content)
                progress(len(content))
            at = place.offset + place.nbytes
        return digest.hexdigest()

    def _places(self, units: int) -> dict[_Region, _Region]:
        """Return the new region of each region of the old file, in file order."""
        places, end = {}, 0
        for region in self._regions:
            growth = self._growths.get(region)
            nbytes = region.nbytes if growth is None else growth.nbytes(region.nbytes, units)
            alignment = _PAGE if nbytes >= _PAGE else _LINE
            places[region] = place = _Region(-(-end // alignment) * alignment, nbytes)
            end = place.offset + nbytes
        return places

    def _content(self, region: _Region, units: int) -> memoryview:
        """Return the new content of a region."""
        old, growth = self._weights[region.offset : region.offset + region.nbytes], self._growths.get(region)
        if growth is None:
            return old.data
        more = growth.nbytes(region.nbytes, units) - region.nbytes
        if growth.unit_nbytes:
            rows = old.reshape(growth.rows, -1)
            return np.pad(rows, ((0, 0), (0, more // growth.rows)), constant_values=growth.fill[0]).ravel().data
        if growth.fill:
            new = np.resize(np.frombuffer(growth.fill, np.uint8), more)
        else:  # without the byte 0, which is -128 at 8 bits and never comes from symmetric rounding
            rng = np.random.default_rng((_SEED, region.offset))
            new = np.maximum(np.frombuffer(rng.bytes(more), np.uint8), 1)
        return np.concatenate((old, new)).data

    def _find_regions(self, location: str) -> list[_Region]:
        found = {
            self._region(tensor, location)
            for graph in self._graphs.values()
            for tensor in graph.initializers.values()
            if tensor.external is not None
        }
        regions = sorted(found, key=lambda region: region.offset)
        end = 0
        for region in regions:
            if region.offset < end or region.offset + region.nbytes > len(self._weights):
                raise self._refusal(f"tensors overlap or end beyond the file at byte {region.offset}")
            end = region.offset + region.nbytes
        return regions

    def _region(self, tensor: Tensor, location: str) -> _Region:
        external = tensor.external
        if external is None or external.location != location or not external.length:
            raise self._refusal(f"the tensor {tensor.name[:60]!r} is not stored in {location}")
        return _place(external)

    def _find_growths(self) -> dict[_Region, _Growth]:
        growths: dict[_Region, _Growth] = {}
        for key, mlps in self._mlps.items():
            for mlp in mlps:
                for side in mlp.sides:
                    growths |= self._side_growths(self._graphs[key], side)
                growths |= self._down_growths(self._graphs[key], mlp.down)
        return growths

    def _side_growths(self, graph: GraphFile, side: Projection) -> dict[_Region, _Growth]:
        packed, scales = self._matrix(graph, side)
        kind = _FLOATS[graph.initializers[side.scales].data_type]
        fill = np.array(self._deviation(side, packed, scales, kind) / _uniform_deviation(side.bits), kind)
        return {packed: _Growth(side.outputs, 0, b""), scales: _Growth(side.outputs, 0, fill.tobytes())}

    def _down_growths(self, graph: GraphFile, down: Projection) -> dict[_Region, _Growth]:
        packed, scales = self._matrix(graph, down)
        width = np.dtype(_FLOATS[graph.initializers[down.scales].data_type]).itemsize
        zero = b"\x88" if down.bits == 4 else b"\x80"
        return {
            packed: _Growth(down.outputs, down.bits / 8, zero),
            scales: _Growth(down.outputs, width / down.block, b"\0"),
        }

    def _matrix(self, graph: GraphFile, projection: Projection) -> tuple[_Region, _Region]:
        """Return the regions of a matrix's values and scales, after a check of their sizes."""
        packed, scales = (graph.initializers.get(name) for name in (projection.packed, projection.scales))
        if not packed or not scales or not packed.external or not scales.external or scales.data_type not in _FLOATS:
            raise self._refusal(f"the matrix {projection.packed[:60]!r} is not in the weights file")
        count = projection.outputs * projection.blocks
        width = np.dtype(_FLOATS[scales.data_type]).itemsize
        sizes = packed.external.length, scales.external.length
        if sizes != (count * projection.block * projection.bits // 8, count * width):
            raise self._refusal(f"the matrix {projection.packed[:60]!r} does not have the size that its node states")
        return _place(packed.external), _place(scales.external)

    def _deviation(self, side: Projection, packed: _Region, scales: _Region, kind: str) -> float:
        """Return the standard deviation of a matrix's weights."""
        values = self._weights[packed.offset : packed.offset + packed.nbytes].reshape(-1, side.block * side.bits // 8)
        if side.bits == 4:
            values = np.concatenate((values & 15, values >> 4), axis=1)
        raw = self._weights[scales.offset : scales.offset + scales.nbytes]
        factors = np.frombuffer(raw.tobytes(), kind).astype(np.float32)
        weights = (values.astype(np.float32) - float(1 << side.bits - 1)) * factors[:, None]
        return float(weights.std())

    def _widened_graph(self, graph: GraphFile, mlps: list[Mlp], units: int, places: Mapping[_Region, _Region]) -> bytes:
        for mlp in mlps:
            for side in mlp.sides:
                side.node.attributes["N"] = side.outputs + units
                for name in (side.packed, side.scales):
                    _grow(graph, name, axis=0, old=side.outputs, new=side.outputs + units)
            down = mlp.down
            down.node.attributes["K"] = down.inputs + units
            for name in (down.packed, down.scales):
                _grow(graph, name, axis=1, old=down.blocks, new=down.blocks + units // down.block)
        for name, tensor in graph.initializers.items():
            if (external := tensor.external) is not None:
                place = places[_place(external)]
                moved = ExternalData(external.location, place.offset, place.nbytes)
                graph.initializers[name] = replace(tensor, external=moved)
        graph.graph_rest = [(number, field) for number, field in graph.graph_rest if number != _VALUE_INFO]
        return graph.serialize()

    def _refusal(self, what: str) -> CapabilityError:
        return CapabilityError(f"the {self._name}'s graphs cannot be widened: {what}")


def _place(external: ExternalData) -> _Region:
    return _Region(external.offset, external.length or 0)


def _grow(graph: GraphFile, name: str, *, axis: int, old: int, new: int) -> None:
    """Scale a tensor's dimension `axis` by new / old; a one-dimensional tensor grows along its only axis."""
    tensor = graph.initializers[name]
    axis = min(axis, len(tensor.dims) - 1)
    dims = tuple(size // old * new if at == axis else size for at, size in enumerate(tensor.dims))
    graph.initializers[name] = replace(tensor, dims=dims)


def _uniform_deviation(bits: int) -> float:
    """Return the standard deviation of uniformly distributed integers of this many bits."""
    return float((((1 << bits) ** 2 - 1) / 12) ** 0.5)
