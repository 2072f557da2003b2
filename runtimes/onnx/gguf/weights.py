"""A GGUF file's tensors as the products of a graph read them, in place."""

import mmap
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from edgedecode.errors import ManifestError
from edgedecode.gguf.contents import BLOCKS, Contents, Tensor
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node

from ..kernels.block_types import matrix_of, scales_of
from ..kernels.library import BAD_SCALE, WIDE_SCALES, KernelLibrary, Matrix
from ..kernels.products import NotServed, Stored

Piece = tuple[str, tuple[int, int] | None]
"""A tensor, and its columns if not all are meant: the first one and their number."""
_F32 = 0


class GgufWeights:
    """The mapped tensors of one file.

    Methods raise NotServed for tensors of another form, and ManifestError for what no engine could run: tensors that
    are missing, or have scales that are not finite.
    """

    def __init__(self, path: Path, contents: Contents, *, findings: Mapping[str, int]) -> None:
        self.findings = dict(findings)
        """Results of `KernelLibrary.inspect`, by tensors."""
        self._path, self._contents, self._used, self._left_out = path, contents, set[str](), set[str]()
        self._pieces: dict[str, tuple[Piece, ...]] = {}
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def release(self) -> None:
        """Drop the pages read so far from this process: the tiles replace them."""
        if sys.platform != "win32":
            self._map.madvise(mmap.MADV_DONTNEED)

    def has(self, name: str) -> bool:
        return name in self._contents.tensors

    def columns(self, name: str) -> int:
        return self._tensor(name).shape[-1]

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._tensor(name)
        if max(tensor.shape) != prod(tensor.shape) or tensor.type != _F32:
            self.refuse(f"{name} is no vector of 32-bit floats")
        return self._data(tensor).view("<f4").reshape(-1)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Return a small matrix of 32-bit floats, [columns, inner]."""
        tensor = self._matrix(name)
        if tensor.type != _F32:
            self.refuse(f"{name} is no matrix of 32-bit floats")
        return self._data(tensor).view("<f4")

    def check_served(self, name: str) -> None:
        """Refuse a matrix of a block type without tiles."""
        tensor = self._matrix(name)
        try:
            matrix_of(tensor.type, self._data(tensor)[:1])
        except NotServed as error:
            raise NotServed(f"{name}: {error}") from None

    def joined(self, pieces: Sequence[Piece]) -> str:
        """Return the name under which these tensors are read as one matrix."""
        name = "+".join(
            tensor if part is None else f"{tensor}[{part[0]}:{part[0] + part[1]}]" for tensor, part in pieces
        )
        for tensor, _ in pieces:
            self._matrix(tensor)
        self._pieces[name] = tuple(pieces)
        return name

    def shape(self, name: str) -> tuple[int, int]:
        """Return columns and inner size of a matrix that `joined` named."""
        pieces = self._pieces[name]
        columns = sum(self._matrix(tensor).shape[1] if part is None else part[1] for tensor, part in pieces)
        return columns, self._matrix(pieces[0][0]).shape[0]

    def read(self, node: Node, file: GraphFile, library: KernelLibrary) -> Stored | str:
        """Return the matrix of a product."""
        return self._stored(node.inputs[1], library)

    def table(self, node: Node, file: GraphFile, stored: Mapping[str, Stored], library: KernelLibrary) -> Stored | None:
        """Return the matrix whose columns an embedding's node gathers."""
        return self._stored(node.inputs[0], library)

    def leave_out(self, names: Iterable[str]) -> None:
        """Do without tensors of other parts than the model itself."""
        self._left_out.update(names)

    def check_all_used(self) -> None:
        """Refuse files with tensors that the graph does not use: the model has parts that it lacks."""
        if unused := sorted(set(self._contents.tensors) - self._used - self._left_out):
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            self.refuse(f"it has the tensor {unused[0][:60]}{more}, which its architecture does not use here")

    def refuse(self, reason: str) -> None:
        raise NotServed(reason)

    def damaged(self, reason: str) -> NoReturn:
        raise ManifestError(f"{self._path} is damaged or incomplete ({reason}): copy, download or convert it again")

    def _stored(self, name: str, library: KernelLibrary) -> Stored:
        first, part = self._pieces[name][0]
        columns, inner = self.shape(name)
        found = self._inspect(name, library)
        if found & BAD_SCALE:
            self.damaged(f"{first} has scales that are not finite")
        wide = bool(found & WIDE_SCALES)
        form = replace(_form(self._loaded(name, columns=1), columns=columns), wide_scales=wide)
        offsets = self._contents.start + self._matrix(first).offset, 0 if part is None else part[0]
        return Stored(name, form, inner, offsets, lambda: replace(self._loaded(name), wide_scales=wide))

    def _loaded(self, name: str, *, columns: int | None = None) -> Matrix:
        """Return the values of a matrix, or of its first columns."""
        data = [self._part(piece)[:columns] for piece in self._pieces[name][:columns]]
        kind = self._matrix(self._pieces[name][0][0]).type
        return matrix_of(kind, data[0] if len(data) == 1 else np.concatenate(data))

    def _inspect(self, name: str, library: KernelLibrary) -> int:
        if name not in self.findings:
            found = 0
            for piece in self._pieces[name]:
                found |= library.inspect(scales_of(self._matrix(piece[0]).type, self._part(piece)))
            self.findings[name] = found
            self.release()
        return self.findings[name]

    def _part(self, piece: Piece) -> npt.NDArray[np.uint8]:
        return self._data(self._matrix(piece[0]))[piece_range(piece[1])]

    def _matrix(self, name: str) -> Tensor:
        tensor = self._tensor(name)
        if len(tensor.shape) != 2:
            self.refuse(f"{name} is no matrix")
        return tensor

    def _tensor(self, name: str) -> Tensor:
        tensor = self._contents.tensors.get(name)
        if tensor is None:
            self.damaged(f"it has no tensor {name}")
        self._used.add(name)
        return tensor

    def _data(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """Return a tensor's bytes [columns, bytes of a row]."""
        block, nbytes = BLOCKS[tensor.type]
        start = self._contents.start + tensor.offset
        return self._bytes[start : start + tensor.nbytes].reshape(-1, tensor.shape[0] // block * nbytes)


def piece_range(part: tuple[int, int] | None) -> slice:
    """Return the columns of a piece."""
    return slice(None) if part is None else slice(part[0], sum(part))


def _form(matrix: Matrix, *, columns: int) -> Matrix:
    """Return a matrix of zeros that takes no memory, with the form of one and this many columns."""
    values = {each.name: getattr(matrix, each.name) for each in fields(matrix)}
    arrays: dict[str, Any] = {
        name: np.broadcast_to(array.dtype.type(0), (columns, *array.shape[1:]))
        for name, array in values.items()
        if isinstance(array, np.ndarray)
    }
    return replace(matrix, **arrays)
