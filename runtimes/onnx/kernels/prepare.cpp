// Converts block-quantized weights from the format of MatMulNBits to tiles, and exports functions for Python.
//
// A tile holds 32 columns. For each block of K that shares a scale (32, 64 or 128) it holds its sub-blocks of 32, then the
// block's 32 scales, then its 32 minima if it has them. A sub-block holds 16 columns, then the other 16, each in vectors of 64 bytes, four bytes per column.
// 4 bits: four vectors; in vector v, column j, byte i the low nibble is k = 8 v + i and the high one k = 8 v + 4 + i.
// 8 bits: eight vectors; byte i of vector v is k = 4 v + i. Columns after the last one are zeros.
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace edgedecode {
namespace {

#include "scalars.h"

// Converts a float to half precision; returns false if it cannot be represented exactly.
bool to_half(float value, uint16_t& half) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 255, mantissa = bits & 0x7fffff;
  if (exponent == 0 && mantissa == 0) {
    half = static_cast<uint16_t>(sign);
    return true;
  }
  if (exponent >= 113 && exponent <= 142) {
    half = static_cast<uint16_t>(sign | (exponent - 112) << 10 | mantissa >> 13);
    return (mantissa & 0x1fff) == 0;
  }
  if (exponent >= 103 && exponent < 113) {  // a denormal half
    const uint32_t whole = mantissa | 0x800000, shift = 126 - exponent;
    half = static_cast<uint16_t>(sign | whole >> shift);
    return (whole & ((1u << shift) - 1)) == 0;
  }
  return false;
}

float factor(const uint8_t* from, bool wide) {
  float value;
  uint16_t half;
  if (wide)
    memcpy(&value, from, 4);
  else
    memcpy(&half, from, 2);
  return wide ? value : half_to_float(half);
}

void put_factor(float value, bool wide, uint8_t* to) {
  uint16_t half = 0;
  if (wide)
    memcpy(to, &value, 4);
  else if (to_half(value, half))
    memcpy(to, &half, 2);
}

}  // namespace

void unpack_column(const Tiled& matrix, size_t column, size_t inner, float* out) {
  const size_t bits = matrix.bits, every = matrix.scale_every, j = column % kColumns;
  const size_t sub_nbytes = kSubBlock * kColumns * bits / 8, scale_nbytes = matrix.wide_scales ? 4 : 2;
  const size_t block_nbytes = every * sub_nbytes + kColumns * scale_nbytes * (matrix.minima ? 2 : 1);
  const int zero = matrix.minima ? 0 : zero_of(matrix.bits);
  const uint8_t* tile = matrix.tiles + column / kColumns * tile_nbytes(matrix.sub_blocks, matrix.bits, matrix.scale_every,
                                                                       matrix.wide_scales, matrix.minima);
  for (size_t sub_block = 0; sub_block * kSubBlock < inner; sub_block++) {
    const uint8_t* block = tile + sub_block / every * block_nbytes;
    const uint8_t* scales = block + every * sub_nbytes + j * scale_nbytes;
    const float scale = factor(scales, matrix.wide_scales);
    const float minimum = matrix.minima ? factor(scales + kColumns * scale_nbytes, matrix.wide_scales) : 0.0f;
    const uint8_t* from = block + sub_block % every * sub_nbytes + j / 16 * (sub_nbytes / 2) + 4 * (j % 16);
    const size_t start = sub_block * kSubBlock, count = inner - start < kSubBlock ? inner - start : kSubBlock;
    for (size_t k = 0; k < count; k++) {
      int quant;
      if (bits == 8) {
        quant = from[k / 4 * 64 + k % 4];
      } else {
        const uint8_t pair = from[k / 8 * 64 + k % 4];
        quant = k % 8 < 4 ? pair & 15 : pair >> 4;
      }
      const float value = static_cast<float>(quant - zero);
      out[start + k] = matrix.minima ? std::fma(value, scale, minimum) : value * scale;
    }
  }
}

}  // namespace edgedecode

using namespace edgedecode;

// A matrix of N columns, with K in blocks of `block` (32, 64 or 128); scales and minima as float32 [N, blocks].
struct EdgedecodeMatrix {
  const uint8_t* packed;  // [N, blocks, block * bits / 8]
  const float* scales;
  const float* minima;  // null: none, and the packed values have a zero point
  int64_t columns, blocks, block, bits, wide_scales;
};

// Bytes of the matrix as tiles.
EDGE_EXPORT int64_t edgedecode_prepared_nbytes(const EdgedecodeMatrix* matrix) {
  const size_t every = matrix->block / kSubBlock;
  const size_t tile = tile_nbytes(matrix->blocks * every, static_cast<int>(matrix->bits), static_cast<int>(every),
                                  matrix->wide_scales != 0, matrix->minima != nullptr);
  return static_cast<int64_t>((matrix->columns + kColumns - 1) / kColumns * tile);
}

// Returns bit 0 if a scale or a minimum is not a half-precision number, and bit 1 if one is infinite or NaN.
EDGE_EXPORT int32_t edgedecode_inspect(const EdgedecodeMatrix* matrix) {
  int32_t found = 0;
  const int64_t count = matrix->columns * matrix->blocks;
  for (const float* values : {matrix->scales, matrix->minima}) {
    for (int64_t i = 0; values != nullptr && i < count; i++) {
      uint16_t half;
      if (!to_half(values[i], half)) found |= 1;
      if (!(values[i] - values[i] == 0.0f)) found |= 2;
    }
  }
  return found;
}

// Writes tiles first to last - 1 of the matrix to `out`, beginning with tile `first`.
EDGE_EXPORT void edgedecode_prepare(const EdgedecodeMatrix* matrix, int64_t first, int64_t last, uint8_t* out) {
  const size_t every = matrix->block / kSubBlock, blocks = matrix->blocks, sub_blocks = blocks * every;
  const size_t bits = matrix->bits, row_nbytes = sub_blocks * kSubBlock * bits / 8;
  const bool wide = matrix->wide_scales != 0, minima = matrix->minima != nullptr;
  const size_t nbytes = tile_nbytes(sub_blocks, static_cast<int>(bits), static_cast<int>(every), wide, minima);
  for (int64_t tile = first; tile < last; tile++, out += nbytes) {
    const size_t sub_nbytes = kSubBlock * kColumns * bits / 8, scale_nbytes = wide ? 4 : 2;
    const size_t factor_nbytes = kColumns * scale_nbytes, block_nbytes = every * sub_nbytes + factor_nbytes * (minima ? 2 : 1);
    for (size_t block = 0; block < blocks; block++) {
      memset(out + block * block_nbytes, bits == 4 ? 0x88 : 0x80, every * sub_nbytes);
      memset(out + block * block_nbytes + every * sub_nbytes, 0, block_nbytes - every * sub_nbytes);
    }
    for (size_t j = 0; j < kColumns && tile * kColumns + j < static_cast<size_t>(matrix->columns); j++) {
      const size_t column = tile * kColumns + j;
      const uint8_t* from = matrix->packed + column * row_nbytes;
      for (size_t vector = 0; vector < sub_blocks * bits; vector++) {  // four bytes each, in K order within a column
        const size_t sub_block = vector / bits;
        uint8_t* to = out + sub_block / every * block_nbytes + sub_block % every * sub_nbytes + j / 16 * (sub_nbytes / 2) +
                      vector % bits * 64 + 4 * (j % 16);
        const uint8_t* four = from + 4 * vector;
        if (bits == 8) {
          memcpy(to, four, 4);
        } else {
          for (size_t i = 0; i < 2; i++) {  // byte i holds k = 2 i and 2 i + 1; the second half goes to the high nibbles
            to[2 * i] = static_cast<uint8_t>((four[i] & 15) | four[i + 2] << 4);
            to[2 * i + 1] = static_cast<uint8_t>(four[i] >> 4 | (four[i + 2] & 0xf0));
          }
        }
      }
      for (size_t block = 0; block < blocks; block++) {
        uint8_t* to = out + block * block_nbytes + every * sub_nbytes + j * scale_nbytes;
        put_factor(matrix->scales[column * blocks + block], wide, to);
        if (minima) put_factor(matrix->minima[column * blocks + block], wide, to + factor_nbytes);
      }
    }
  }
}

// Writes one column's weights from the tiles to `out`, [blocks * block].
EDGE_EXPORT void edgedecode_unpack(const EdgedecodeMatrix* matrix, const uint8_t* tiles, int64_t column, float* out) {
  const size_t every = matrix->block / kSubBlock, inner = matrix->blocks * matrix->block;
  unpack_column({tiles, matrix->blocks * every, static_cast<int>(matrix->bits), static_cast<int>(every),
                 matrix->wide_scales != 0, matrix->minima != nullptr}, column, inner, out);
}

EDGE_EXPORT const char* edgedecode_kernels() { return kernels()->name; }
EDGE_EXPORT int32_t edgedecode_has_kernels(const char* name) { return kernels_named(name) != nullptr; }
EDGE_EXPORT int32_t edgedecode_choose_kernels(const char* name) { return choose_kernels(name); }
