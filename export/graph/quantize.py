"""Symmetric block quantization in numpy: blocks along the inner dimension, scales exactly representable in float16.

4 bits follow Q4_0's convention and 8 bits Q8_0's, so a GGUF file can hold the same blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray

from .error_feedback import rounded
from .scale_search import as_scales, largest_scales

ByteArray: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a weight is stored: 4 or 8 bits in blocks of `block_size`, or 16 or 32 bits as floats (block size 0)."""

    bits: int
    block_size: int = 0

    @property
    def quantized(self) -> bool:
        return self.bits < 16

    @property
    def name(self) -> str:
        return f"int{self.bits}, block {self.block_size}" if self.quantized else f"float{self.bits}"

    def nbytes(self, rows: int, columns: int) -> int:
        """Return the stored size of a [rows, columns] weight, including float32 scales."""
        scales = 4 * rows * (columns // self.block_size) if self.quantized else 0
        return rows * columns * self.bits // 8 + scales


@dataclass(frozen=True, slots=True)
class Blocks:
    """A quantized [rows, columns] weight.

    packed: uint8 [rows, blocks, bytes], at 4 bits two values per byte with the even column in the low half; the zero
    point is 8 or 128. scales: float32 [rows, blocks], exactly representable in float16; negative ones occur at 4 bits.
    """

    packed: ByteArray
    scales: FloatArray


def quantize(weights: FloatArray, scheme: Scheme, *, factors: Sequence[FloatArray] = ()) -> Blocks:
    """Quantize finite float32 [rows, columns] to nearest.

    factors: of the inputs' second moments (`Moments.factors`), with which 4-bit weights are rounded for the least error
    of their products. They are ignored at 8 bits, where they gain nothing.

    The scale is rounded to float16 before the integers are computed. llama.cpp's quantizer does it the other way round;
    these blocks are equally valid and closer to the weights.
    """
    rows, columns = weights.shape
    assert scheme.quantized
    assert columns % scheme.block_size == 0
    shape = rows, columns // scheme.block_size, scheme.block_size
    if factors and scheme.bits == 4:
        levels, scales = rounded(weights, scheme.block_size, factors)
        return Blocks(_packed(levels.reshape(shape), bits=4), scales)
    blocks = weights.reshape(shape)
    scales = _scales(blocks, scheme.bits)
    with np.errstate(divide="ignore"):
        inverse = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    levels = blocks * inverse[..., None]
    np.rint(levels, out=levels)
    np.clip(levels, -8 if scheme.bits == 4 else -127, 7 if scheme.bits == 4 else 127, out=levels)
    return Blocks(_packed(levels, bits=scheme.bits), scales)


def dequantize(blocks: Blocks, scheme: Scheme) -> FloatArray:
    """Return the blocks as a float32 [rows, columns] weight."""
    rows = blocks.packed.shape[0]
    if scheme.bits == 4:
        values = np.stack((blocks.packed & np.uint8(15), blocks.packed >> np.uint8(4)), axis=-1)
        values = values.reshape(*blocks.scales.shape, scheme.block_size)
    else:
        values = blocks.packed
    levels = values.astype(np.float32) - np.float32(1 << (scheme.bits - 1))
    return np.asarray((levels * blocks.scales[..., None]).reshape(rows, -1), np.float32)


def _packed(levels: FloatArray, *, bits: int) -> ByteArray:
    """Return levels around 0 as a pack stores them, around the zero point. Overwrites them."""
    levels += np.float32(1 << (bits - 1))
    values = levels.astype(np.uint8)
    packed = values if bits == 8 else values[..., 0::2] | (values[..., 1::2] << np.uint8(4))
    return np.ascontiguousarray(packed)


def _scales(blocks: FloatArray, bits: int) -> FloatArray:
    """Return one scale per block, rounded through float16."""
    if bits == 4:
        return largest_scales(blocks)
    return as_scales(np.maximum(blocks.max(axis=-1), -blocks.min(axis=-1)) / np.float32(127))
