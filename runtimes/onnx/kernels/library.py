"""Load the kernel library, and call its functions that prepare matrices."""

import sys
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.errors import InputError, RuntimeUnavailable

INSTRUCTION_SETS = ("avx512", "avxvnni", "avx2", "i8mm", "neon", "generic")
LIBRARY = Path(__file__).with_name("_rows.dll" if sys.platform == "win32" else "_rows.so")
WIDE_SCALES, BAD_SCALE = 1, 2
ANY_FINDING = WIDE_SCALES | BAD_SCALE
"""Bits of `inspect`: scales that are not half-precision numbers, and a scale that is infinite or NaN."""


class _Matrix(Structure):
    """`EdgedecodeMatrix` of prepare.cpp."""

    _fields_ = (
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("minima", c_void_p),
        ("levels", c_void_p),
        ("minimum_levels", c_void_p),
        ("columns", c_int64),
        ("blocks", c_int64),
        ("block", c_int64),
        ("bits", c_int64),
        ("wide_scales", c_int64),
        ("parts", c_int64),
        ("bfloat16", c_int64),
        ("table", c_int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A quantized matrix as MatMulNBits stores it, or one of floats: of 16 or 32 bits, in blocks of 32 without scales.

    packed: uint8 [columns, blocks, block · bits / 8]; values of 5 and 6 bits are a byte each. scales: float32 [columns,
    blocks]. wide_scales: the tiles store scales and minima as float32, because half precision would change one. minima:
    as scales, what is added to each value, which then has no zero point; None: the zero point of 4 bits is 8, of 8 bits
    128, and so on. levels: int8 [columns, blocks, n], factors of a block's scale for each n-th part of it, of 32 or 16
    values; minimum_levels: of its minimum. table: the values of 4 bits are indices of 1: IQ4's values, 2: FP4's.
    """

    packed: npt.NDArray[np.uint8]
    scales: FloatArray
    bits: int
    block: int
    wide_scales: bool = False
    minima: FloatArray | None = None
    levels: npt.NDArray[np.int8] | None = None
    minimum_levels: npt.NDArray[np.int8] | None = None
    bfloat16: bool = False
    table: int = 0

    @property
    def parts(self) -> int:
        """Scales of 32 values, 1 or 2, where there are levels; else 0."""
        return 0 if self.levels is None else int(self.levels.shape[-1]) * 32 // self.block

    @property
    def columns(self) -> int:
        return int(self.packed.shape[0])

    def _native(self) -> _Matrix:
        columns, blocks = self.packed.shape[:2]
        arrays = self.packed, self.scales, self.minima, self.levels, self.minimum_levels
        pointers = (None if array is None else array.ctypes.data for array in arrays)
        sizes = columns, blocks, self.block, self.bits
        return _Matrix(*pointers, *sizes, self.wide_scales, self.parts, self.bfloat16, self.table)


class KernelLibrary:
    """The loaded library. Raises RuntimeUnavailable if it cannot be loaded or lacks a function."""

    def __init__(self, path: Path = LIBRARY) -> None:
        self.path = path
        try:
            self.handle = CDLL(str(path))
            self._kernels = self.handle.edgedecode_kernels
            self._has, self._choose = self.handle.edgedecode_has_kernels, self.handle.edgedecode_choose_kernels
            self._nbytes, self._inspect = self.handle.edgedecode_prepared_nbytes, self.handle.edgedecode_inspect
            self._unpack = self.handle.edgedecode_unpack
            self._prepare, self._use_threads = self.handle.edgedecode_prepare, self.handle.edgedecode_use_threads
        except (OSError, AttributeError) as error:
            raise RuntimeUnavailable(f"the kernel library {path} cannot be loaded ({error})") from None
        self._kernels.restype = c_char_p
        self._has.argtypes = self._choose.argtypes = [c_char_p]
        self._has.restype = self._choose.restype = self._inspect.restype = c_int32
        self._nbytes.restype = c_int64
        self._nbytes.argtypes = self._inspect.argtypes = [POINTER(_Matrix)]
        self._prepare.argtypes, self._prepare.restype = [POINTER(_Matrix), c_int64, c_int64, c_void_p], None
        self._unpack.argtypes, self._unpack.restype = [POINTER(_Matrix), c_void_p, c_int64, c_void_p], None
        self._use_threads.argtypes, self._use_threads.restype = [c_int32], None

    @property
    def instruction_set(self) -> str:
        """The instruction set of the kernels in use in this process."""
        return str(self._kernels().decode())

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """The instruction sets that this processor and this build support, best first."""
        return tuple(name for name in INSTRUCTION_SETS if self._has(name.encode()))

    def choose(self, name: str) -> None:
        """Use an instruction set from now on, or the best one with "auto". Raises InputError if it is unavailable."""
        if not self._choose(name.encode()):
            usable = ", ".join(self.instruction_sets)
            raise InputError(f"this processor or build has no {name!r} kernels; it has: {usable}")

    def use_threads(self, threads: int) -> None:
        """Limit the threads of passes run by the calling thread from now on."""
        self._use_threads(threads)

    def inspect(self, matrix: Matrix) -> int:
        """Return WIDE_SCALES and BAD_SCALE as far as they apply to a matrix."""
        return int(self._inspect(byref(matrix._native())))

    def prepared_nbytes(self, matrix: Matrix) -> int:
        """Return the bytes of a matrix as tiles."""
        return int(self._nbytes(byref(matrix._native())))

    def prepare(self, matrix: Matrix, out: npt.NDArray[np.uint8]) -> None:
        """Write a matrix as tiles to `out`, uint8 [prepared_nbytes], with two threads. ValueError: another size."""
        self._check_tiles(matrix, out)
        native, start, tiles = byref(matrix._native()), out.ctypes.data, -(-matrix.columns // 32)
        half = tiles // 2
        other = Thread(target=self._prepare, args=(native, 0, half, start))
        other.start()
        self._prepare(native, half, tiles, start + out.nbytes // tiles * half)
        other.join()

    def unpack(self, matrix: Matrix, tiles: npt.NDArray[np.uint8], column: int) -> FloatArray:
        """Return one column's weights, [blocks · block], from tiles of the matrix. Raises ValueError as `prepare`."""
        self._check_tiles(matrix, tiles)
        if not 0 <= column < matrix.columns:
            raise ValueError(f"there is no column {column} of {matrix.columns}")
        found = np.empty(matrix.packed.shape[1] * matrix.block, np.float32)
        self._unpack(byref(matrix._native()), tiles.ctypes.data, column, found.ctypes.data)
        return found

    def _check_tiles(self, matrix: Matrix, tiles: npt.NDArray[np.uint8]) -> None:
        if tiles.nbytes != (nbytes := self.prepared_nbytes(matrix)) or not tiles.flags.c_contiguous:
            raise ValueError(f"the tiles of this matrix are {nbytes} bytes in one piece, not {tiles.nbytes}")
