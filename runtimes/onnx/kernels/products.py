"""Build nodes of our product operator, and read the quantized matrices of a graph that it supports."""

import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import Tensor

from .library import BAD_SCALE, WIDE_SCALES, KernelLibrary, Matrix

DOMAIN = "edgedecode"
FLOAT, UINT8 = 1, 2
_TYPES: Mapping[int, type[np.generic]] = {FLOAT: np.float32, UINT8: np.uint8}
_BLOCKS = (32, 64, 128)
_BYTE = 8
"""Bits of the supported embeddings; narrower ones pack two values per byte, which tensors encode in several ways."""
FLOAT_ACTIVATIONS = "activations that must not be rounded"
_PAGE_NBYTES = 4096
_FLOAT32_LEVEL, _INT8_LEVEL = 1, 4
"""Accuracy levels of MatMulNBits: 1 requires float32 activations, which only the engine supports, and 4 allows 8 bits.
Levels 0 (unset), 2 (float16) and 3 (bfloat16) get 16 bits, whose error is smaller than float16's: see docs/kernels.md.
"""


class NotServed(Exception):
    """The engine's kernels run a graph as a whole; the message is the reason."""


def serves_head(size: object) -> TypeGuard[int]:
    """Return whether our attention takes heads of this size."""
    return isinstance(size, int) and size % 16 == 0 and 0 < size <= 512


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix of a graph and its offsets in the weights file; None if the matrix is stored in the graph.

    inner: its rows, without the last block's padding. load: returns the matrix where `matrix` has only its form, as
    its arrays would have to be computed. given: the start of its tiles in those of another model, which are bound here.
    """

    name: str
    matrix: Matrix
    inner: int
    offsets: tuple[int, int] | None
    load: Callable[[], Matrix] | None = None
    given: int | None = None

    def loaded(self) -> Matrix:
        """Return the matrix with its values."""
        return self.matrix if self.load is None else self.load()


class Weights(Protocol):
    """What a graph's products and embeddings read."""

    findings: dict[str, int]
    """Results of `KernelLibrary.inspect`."""

    def release(self) -> None:
        """Drop the pages read so far from this process, as the memory plan does not include them besides the tiles."""

    def read(self, node: Node, file: GraphFile, library: KernelLibrary) -> Stored | str:
        """Return the matrix of a MatMulNBits node, or why the product is left to the engine's kernel."""

    def table(self, node: Node, file: GraphFile, stored: Mapping[str, Stored], library: KernelLibrary) -> Stored | None:
        """Return the matrix of which a GatherBlockQuantized node reads columns; None: the engine keeps the array."""


class WeightsFile:
    """A graph's initializers as arrays, read in place from the graph or from its mapped weights file."""

    def __init__(self, path: Path, *, findings: Mapping[str, int] | None = None) -> None:
        self.findings = dict(findings or {})
        """Results of `KernelLibrary.inspect` for the file's matrices, by offsets and storage format."""
        self._name = path.name
        self._map: mmap.mmap | None = None
        if path.stat().st_size:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map or b"", np.uint8)

    def release(self) -> None:
        """Drop the pages read so far from this process, as the memory plan does not include them besides the tiles."""
        if self._map is not None and sys.platform != "win32":
            self._map.madvise(mmap.MADV_DONTNEED)

    def inspect(self, matrix: Matrix, offsets: tuple[int, int] | None, library: KernelLibrary) -> int:
        """Return the cached result of `library.inspect`, which reads every byte of a matrix."""
        key = f"{offsets} {matrix.packed.shape} {matrix.bits} {matrix.block}"
        found = None if offsets is None else self.findings.get(key)
        if found is None:
            found = library.inspect(matrix)
            self.release()
            if offsets is not None:
                self.findings[key] = found
        return found

    def read(self, node: Node, file: GraphFile, library: KernelLibrary) -> Stored | str:
        return read_matrix(node, file, self, library)

    def table(self, node: Node, file: GraphFile, stored: Mapping[str, Stored], library: KernelLibrary) -> Stored | None:
        """Return the tiles of a tied head, if the embedding is the same array."""
        packed, scales = (file.initializers.get(name) for name in (node.inputs[0], node.inputs[2]))
        if packed is None or scales is None or packed.external is None or scales.external is None:
            return None
        offsets = packed.external.offset, scales.external.offset
        tied = next((each for each in stored.values() if each.offsets == offsets), None)
        if tied is None or not _is_table(node, packed, tied.matrix):
            return None
        return replace(tied, inner=packed.dims[1])

    def array(self, tensor: Tensor) -> npt.NDArray[np.generic] | None:
        """Return an initializer's values; None for an unsupported type or bytes that do not match its shape."""
        kind = _TYPES.get(tensor.data_type)
        if kind is None:
            return None
        count = prod(tensor.dims)
        nbytes = count * np.dtype(kind).itemsize
        if tensor.external is None:
            source = np.frombuffer(tensor.raw or b"", np.uint8)
        else:
            if tensor.external.location != self._name or tensor.external.length not in (None, nbytes):
                return None
            start = tensor.external.offset
            source = self._bytes[start : start + nbytes]
        if source.nbytes != nbytes:
            return None
        values: npt.NDArray[np.generic] = np.frombuffer(source, kind).reshape(tensor.dims)
        return values


def read_matrix(node: Node, file: GraphFile, weights: WeightsFile, library: KernelLibrary) -> Stored | str:
    """Return the matrix of a MatMulNBits node, or why the product is left to the engine's kernel."""
    sizes = [node.attributes.get(name) for name in ("N", "K", "bits", "block_size")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return "its sizes are not positive whole numbers"
    columns, inner, bits, block = (int(size) for size in sizes if isinstance(size, int))
    if bits not in (4, 8) or block not in _BLOCKS:
        return f"{bits} bits in blocks of {block}"
    if node.attributes.get("accuracy_level") == _FLOAT32_LEVEL:
        return FLOAT_ACTIVATIONS
    if any(node.inputs[3:5]):
        return "zero points or an order of groups"
    packed, scales = (file.initializers.get(name) for name in node.inputs[1:3])
    if packed is None or scales is None or (packed.data_type, scales.data_type) != (UINT8, FLOAT):
        return "weights that are computed, or scales that are not float32"
    values, factors = weights.array(packed), weights.array(scales)
    blocks = -(-inner // block)
    shape = (columns, blocks, block * bits // 8)
    if values is None or factors is None or values.size != prod(shape) or factors.size != columns * blocks:
        return "weights whose size differs from the node's"
    floats = np.require(factors.reshape(columns, blocks), np.float32, ["C", "A"])
    matrix = Matrix(np.ascontiguousarray(values.reshape(shape), np.uint8), floats, bits, block)
    offsets = None
    if packed.external is not None and scales.external is not None:
        offsets = packed.external.offset, scales.external.offset
    found = weights.inspect(matrix, offsets, library)
    if found & BAD_SCALE:
        return "scales that are not finite"
    return Stored(
        f"{packed.name} {scales.name} {columns} {inner} {bits} {block}",  # one array may serve two matrices
        replace(matrix, wide_scales=bool(found & WIDE_SCALES)),
        inner,
        offsets,
    )


def planes_of(node: Node) -> int:
    """Return the number of 8-bit planes for the activations of a MatMulNBits node: 1, or 2 for 16 bits."""
    return 1 if node.attributes.get("accuracy_level") == _INT8_LEVEL else 2


def tile_offsets(library: KernelLibrary, stored: Sequence[Stored]) -> dict[str, int]:
    """Return the page-aligned start of each matrix among all tiles by name, and the end of the last under ""."""
    found, start = {}, 0
    for each in stored:
        found[each.name] = start
        start += -(-library.prepared_nbytes(each.matrix) // _PAGE_NBYTES) * _PAGE_NBYTES
    return {**found, "": start}


def matrix_attributes(matrix: Matrix) -> dict[str, int]:
    """Return the attributes that an operator needs to read a matrix's tiles."""
    return {
        "columns": matrix.columns,
        "bits": matrix.bits,
        "scale_every": matrix.block // 32,
        "wide_scales": int(matrix.wide_scales),
        "minima": int(matrix.minima is not None),
        "levels": matrix.parts,
        "bfloat16": int(matrix.bfloat16),
        "table": matrix.table,
    }


def product_node(
    inputs: Sequence[str],
    output: str,
    *,
    matrix: Matrix,
    inner: int,
    threads: int,
    gate: int = 0,
    planes: int = 1,
    name: str = "",
) -> Node:
    """Return the node. Its inputs are x, tiles and, if used, a bias and the tiles of a second matrix."""
    return Node(
        "RowsProduct",
        DOMAIN,
        name,
        list(inputs),
        [output],
        {"inner": inner, **matrix_attributes(matrix), "planes": planes, "gate": gate, "threads": threads},
    )


def _is_table(node: Node, packed: Tensor, matrix: Matrix) -> bool:
    """Return whether a node gathers rows of a byte array [columns, inner] with the layout of this matrix."""
    attributes = node.attributes
    columns, blocks = matrix.packed.shape[:2]
    return (
        packed.data_type == UINT8
        and matrix.bits == attributes.get("bits", 4) == _BYTE
        and packed.dims == (columns, blocks * matrix.block)
        and attributes.get("block_size", 128) == matrix.block
        and attributes.get("gather_axis", 0) == 0
        and attributes.get("quantize_axis", 1) in (1, -1)
    )
