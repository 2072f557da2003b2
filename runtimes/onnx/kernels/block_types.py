"""Turns the tensors of GGUF files into matrices for our tiles, by ggml's block type.

Blocks of 32 values have one scale, and a minimum for some types; K types and IQ4_XS have blocks of 256, whose scale is
multiplied by an integer for each 32 or 16. Values of 2 and 3 bits are widened to 4; those of tables stay indices, and
floats stay as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, bfloat16_floats
from edgedecode.gguf.contents import BLOCKS, TYPE_NAMES

from .library import Matrix
from .products import NotServed

_F32, _F16, _BF16 = 0, 1, 30
FLOATS = {_F32: 32, _F16: 16, _BF16: 16}
"""The bits of floats, by ggml's number of their type."""
_N = TypeVar("_N", bound=np.generic)
_Bytes = npt.NDArray[np.uint8]
_IQ4, _FP4 = 1, 2
"""Tables of the kernels."""


@dataclass(frozen=True, slots=True)
class BlockValues:
    """The parts of a tensor.

    values: makes those, [columns, K], unsigned; the zero point without minima is that of their bits.

    scales, minima: [columns, blocks].

    levels, minimum_levels: [columns, blocks, n], by which those of a block are multiplied for its n parts.
    """

    values: Callable[[], _Bytes]
    scales: FloatArray
    minima: FloatArray | None = None
    levels: npt.NDArray[np.int8] | None = None
    minimum_levels: npt.NDArray[np.int8] | None = None


def matrix_of(kind: int, data: _Bytes) -> Matrix:
    """Return the matrix of a tensor. data: [columns, bytes of a row]. Raises NotServed for a type without tiles."""
    if kind in FLOATS:
        return _float_matrix(data, bits=FLOATS[kind], bfloat16=kind == _BF16)
    if kind not in READERS:
        raise NotServed(f"its block type {TYPE_NAMES.get(kind, kind)} has no tiles")
    bits, read = READERS[kind]
    found = read(data)
    values = np.ascontiguousarray(found.values().reshape(*found.scales.shape, -1))
    return Matrix(
        values if bits > 4 else np.bitwise_or(values[..., ::2], values[..., 1::2] << 4, dtype=np.uint8),
        np.ascontiguousarray(found.scales),
        bits,
        values.shape[-1],
        minima=None if found.minima is None else np.ascontiguousarray(found.minima),
        levels=None if found.levels is None else np.ascontiguousarray(found.levels),
        minimum_levels=None if found.minimum_levels is None else np.ascontiguousarray(found.minimum_levels),
        table=_TABLES.get(kind, 0),
    )


def floats_of(kind: int, data: _Bytes) -> FloatArray:
    """Return the values of some columns of a tensor, [columns, K]. data, and errors: as `matrix_of`."""
    if kind in FLOATS:
        if kind == _BF16:
            return bfloat16_floats(np.ascontiguousarray(data).view("<u2"))
        return np.ascontiguousarray(data).view("<f2" if kind == _F16 else "<f4").astype(np.float32)
    if kind not in READERS:
        raise NotServed(f"its block type {TYPE_NAMES.get(kind, kind)} has no reader")
    bits, read = READERS[kind]
    found = read(data)
    parts = (1,) if found.levels is None else found.levels.shape[-1:]
    packed = found.values().reshape(*found.scales.shape, *parts, -1)
    scales, minima = found.scales[..., None], found.minima
    scales = scales if found.levels is None else scales * found.levels
    zero = np.float32(0 if minima is not None else 1 << bits - 1)
    numbers = _NUMBERS[_TABLES[kind]][packed] if kind in _TABLES else packed - zero
    values = numbers * scales[..., None]
    if minima is not None:
        levels = found.minimum_levels
        values += (minima[..., None] if levels is None else minima[..., None] * levels)[..., None]
    return values.reshape(len(data), -1)


def scales_of(kind: int, data: _Bytes) -> Matrix:
    """Return the matrix of a tensor without its values, which takes a fraction of the time. Raises as `matrix_of`."""
    if kind not in READERS:
        return matrix_of(kind, data[:1])  # floats have no scales
    (block, _), (bits, read) = BLOCKS[kind], READERS[kind]
    found = read(data)
    packed = np.broadcast_to(np.uint8(0), (*found.scales.shape, block * bits // 8))
    scales, minima = np.ascontiguousarray(found.scales), found.minima
    return Matrix(packed, scales, bits, block, minima=None if minima is None else np.ascontiguousarray(minima))


def _float_matrix(data: _Bytes, *, bits: int, bfloat16: bool) -> Matrix:
    """Return a matrix of floats, its columns padded with zeros to whole blocks of 32."""
    missing = -data.shape[1] % (32 * bits // 8)
    padded = np.pad(data, ((0, 0), (0, missing))) if missing else data
    packed = padded.reshape(len(data), -1, 32 * bits // 8)
    return Matrix(np.ascontiguousarray(packed), np.empty((len(data), 0), np.float32), bits, 32, bfloat16=bfloat16)


def _floats(data: _Bytes) -> FloatArray:
    """Return float16 numbers, [.., n] from [.., 2 n] bytes."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _blocks(data: _Bytes, nbytes: int) -> _Bytes:
    return data.reshape(len(data), -1, nbytes)


def _rows(values: npt.NDArray[_N]) -> npt.NDArray[_N]:
    return values.reshape(len(values), -1)


def _nibbles(packed: _Bytes) -> _Bytes:
    """Return 4-bit values in ggml's order: byte i of n holds the values i and i + n."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _fifth_bits(packed: _Bytes) -> _Bytes:
    """Return bit i of 32, shifted to the fifth place, for value i of a block."""
    bits: _Bytes = np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")
    return bits * np.uint8(16)


def _simple(*, floats: int, fifth: bool = False) -> Callable[[_Bytes], BlockValues]:
    """Return the reader of blocks of 32: a scale, a minimum if floats is 2, fifth bits, then values of 4 bits."""

    def read(data: _Bytes) -> BlockValues:
        start = 2 * floats
        blocks = _blocks(data, start + (4 if fifth else 0) + 16)
        factors = _floats(blocks[..., :start])

        def values() -> _Bytes:
            found = _nibbles(blocks[..., -16:])
            if fifth:
                found |= _fifth_bits(blocks[..., start : start + 4])
            return _rows(found)

        return BlockValues(values, factors[..., 0], factors[..., 1] if floats > 1 else None)

    return read


def _bytes(data: _Bytes) -> BlockValues:
    blocks = _blocks(data, 34)
    return BlockValues(lambda: _rows(blocks[..., 2:] ^ np.uint8(128)), _floats(blocks[..., :2])[..., 0])


def _indices(packed: _Bytes) -> _Bytes:
    """Return [columns, K] from blocks of 32 indices, [columns, .., bytes]."""
    return _rows(_nibbles(packed.reshape(len(packed), -1, 16)))


def _iq4_nl(data: _Bytes) -> BlockValues:
    blocks = _blocks(data, 18)
    return BlockValues(lambda: _indices(blocks[..., 2:]), _floats(blocks[..., :2])[..., 0])


def _mxfp4(data: _Bytes) -> BlockValues:
    blocks = _blocks(data, 17)
    exponents = blocks[..., 0].astype(np.int32) - 128  # one less than in the file: the values are doubled
    return BlockValues(lambda: _indices(blocks[..., 1:]), np.ldexp(np.float32(1), exponents))


def _iq4_xs(data: _Bytes) -> BlockValues:
    blocks = _blocks(data, 136)
    high = np.ascontiguousarray(blocks[..., 2:4]).view("<u2") >> (2 * np.arange(8, dtype=np.uint16)) & 3
    low = np.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), axis=-1).reshape(*blocks.shape[:2], 8)
    levels = (high << 4 | low).astype(np.int8) - np.int8(32)
    return BlockValues(lambda: _indices(blocks[..., 8:]), _floats(blocks[..., :2])[..., 0], levels=levels)


def _six_bits(packed: _Bytes) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Return the 8 scales and 8 minima of a superblock of Q4_K or Q5_K, 6 bits each, [.., 8] from [.., 12]."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6) << 4), axis=-1)
    minima = np.concatenate((second & 63, (third >> 4) | (second >> 6) << 4), axis=-1)
    return scales.view(np.int8), minima.view(np.int8)


def _planes(packed: _Bytes, bits: int, parts: int) -> _Bytes:
    """Return values of `bits` bits, [.., n], from bytes in equal parts, of which each has all its lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    pieces = packed.reshape(*packed.shape[:2], parts, 1, -1) >> shifts & np.uint8(2**bits - 1)
    return pieces.reshape(*packed.shape[:2], -1)


def _k_minima(*, fifth: bool) -> Callable[[_Bytes], BlockValues]:
    """Return the reader of Q4_K and Q5_K: superblocks of 256, two float16, 8 scales and minima, fifth bits, values."""

    def read(data: _Bytes) -> BlockValues:
        blocks = _blocks(data, 176 if fifth else 144)
        factors, (levels, minimum_levels) = _floats(blocks[..., :4]), _six_bits(blocks[..., 4:16])

        def values() -> _Bytes:
            found = _planes(blocks[..., -128:], 4, 4)
            if fifth:
                found |= _planes(blocks[..., 16:48], 1, 1) << 4
            return _rows(found)

        return BlockValues(values, factors[..., 0], -factors[..., 1], levels, minimum_levels)

    return read


def _q6_k(data: _Bytes) -> BlockValues:
    """Superblocks: four low bits, two high bits of the values, 16 scales of 8 bits, a float16."""
    blocks = _blocks(data, 210)
    scales, levels = _floats(blocks[..., 208:])[..., 0], blocks[..., 192:208].view(np.int8)
    return BlockValues(
        lambda: _rows(_planes(blocks[..., :128], 4, 2) | _planes(blocks[..., 128:192], 2, 2) * np.uint8(16)),
        scales,
        levels=levels,
    )


def _q3_k(data: _Bytes) -> BlockValues:
    """Superblocks: a high bit, two low bits of the values, 16 scales of 6 bits, a float16."""
    blocks = _blocks(data, 110)

    def values() -> _Bytes:
        found = _planes(blocks[..., 32:96], 2, 2) | _planes(blocks[..., :32], 1, 1) * np.uint8(4)
        return _rows(found + np.uint8(4))

    levels = _planes(blocks[..., 96:104], 4, 1) | _planes(blocks[..., 104:108], 2, 1) << 4
    scales = _floats(blocks[..., 108:])[..., 0]
    return BlockValues(values, scales, levels=levels.view(np.int8) - np.int8(32))


def _q2_k(data: _Bytes) -> BlockValues:
    """Superblocks: 16 scales and minima of 4 bits, values of two bits, two float16."""
    blocks = _blocks(data, 84)
    factors, (levels, minimum_levels) = _floats(blocks[..., 80:]), (blocks[..., :16] & 15, blocks[..., :16] >> 4)
    return BlockValues(
        lambda: _rows(_planes(blocks[..., 16:80], 2, 2)),
        factors[..., 0],
        -factors[..., 1],
        levels.view(np.int8),
        minimum_levels.view(np.int8),
    )


READERS: dict[int, tuple[int, Callable[[_Bytes], BlockValues]]] = {
    2: (4, _simple(floats=1)),  # Q4_0
    3: (4, _simple(floats=2)),  # Q4_1
    6: (5, _simple(floats=1, fifth=True)),  # Q5_0
    7: (5, _simple(floats=2, fifth=True)),  # Q5_1
    8: (8, _bytes),  # Q8_0
    10: (4, _q2_k),
    11: (4, _q3_k),
    12: (4, _k_minima(fifth=False)),  # Q4_K
    13: (5, _k_minima(fifth=True)),  # Q5_K
    14: (6, _q6_k),
    20: (4, _iq4_nl),
    23: (4, _iq4_xs),
    39: (4, _mxfp4),
}
"""By ggml's number of a type: the bits of its tiles, and what reads its blocks."""
_TABLES = {20: _IQ4, 23: _IQ4, 39: _FP4}
_HALF_FP4 = (0, 1, 2, 3, 4, 6, 8, 12)
_NUMBERS = {
    _IQ4: np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32),
    _FP4: np.array([*_HALF_FP4, *(-each for each in _HALF_FP4)], np.float32),
}
"""The tables' values: kvalues_iq4nl and kvalues_mxfp4 of ggml-common.h."""
