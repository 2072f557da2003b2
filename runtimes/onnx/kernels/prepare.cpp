// Converts block-quantized weights from the format of MatMulNBits to tiles, and exports functions for Python.
//
// A tile holds 32 columns. For each block of K that shares a scale (32 to 256) it holds its sub-blocks of 32, then the
// block's 32 scales, then its 32 minima if it has them. With two levels of scales, the sub-blocks' factors are in front of
// the block's scales: for each sub-block 32 of its first part, 32 of its second part if it has two, and as many for the
// minima. A sub-block holds 16 columns, then the other 16, each in vectors of 64 bytes, four bytes per column.
// 8 bits: eight vectors; byte i of vector v is k = 4 v + i. 4 bits and indices of a table: four vectors; the low nibbles of
// vector v are vector 2 v of these eight, the high ones vector 2 v + 1. 5 and 6 bits: behind these four, one or two vectors
// with the bits above: of each byte, from the lowest bit on, those of vectors 0 to 7, or of 0 to 3 and of 4 to 7.
// Columns after the last one are zeros.
// Floats of 16 or 32 bits have no scales: for each k, 32 columns.
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

// Value k of a column in a sub-block; `at`: its bytes of vector 0.
int quant_at(const Form& form, const uint8_t* at, size_t k) {
  const size_t vector = k / 4, byte = k % 4;
  if (form.bits == 8) return at[vector * 64 + byte];
  const int low = at[vector / 2 * 64 + byte] >> vector % 2 * 4 & 15;
  if (form.bits == 4) return form.table == 0 ? low : kTables[form.table - 1][low];
  const size_t more = form.bits - 4, together = 8 / more;
  const int high = at[256 + vector / together * 64 + byte] >> vector % together * more & ((1 << more) - 1);
  return low | high << 4;
}

void merge_word(uint8_t* at, uint32_t word) {
  uint32_t there;
  memcpy(&there, at, 4);
  there |= word;
  memcpy(at, &there, 4);
}

// Writes the four values of a vector, a byte each, to the bytes of a column, which were zeros; `at` as in `quant_at`.
void put_quants(const Form& form, const uint8_t* values, size_t vector, uint8_t* at) {
  uint32_t four;
  memcpy(&four, values, 4);
  if (form.bits == 8) return merge_word(at + vector * 64, four);
  merge_word(at + vector / 2 * 64, (four & 0x0f0f0f0f) << vector % 2 * 4);
  if (form.bits == 4) return;
  const size_t more = form.bits - 4, together = 8 / more;
  merge_word(at + 256 + vector / together * 64, (four >> 4 & 0x0f0f0f0f) << vector % together * more);
}

}  // namespace

void unpack_column(const Tiled& matrix, size_t column, size_t inner, float* out) {
  const Form& form = matrix.form;
  const size_t every = form.scale_every, j = column % kColumns, parts = form.parts();
  const uint8_t* tile = matrix.tiles + column / kColumns * form.tile_nbytes(matrix.sub_blocks);
  if (form.floats()) {
    for (size_t k = 0; k < inner; k++) {
      const uint8_t* from = tile + (k * kColumns + j) * form.bits / 8;
      BFloat16 value;
      memcpy(&value, from, 2);
      out[k] = form.bfloat16 ? bfloat16_to_float(value) : factor(from, form.bits == 32);
    }
    return;
  }
  for (size_t sub_block = 0; sub_block * kSubBlock < inner; sub_block++) {
    const uint8_t* block = tile + sub_block / every * form.block_nbytes();
    const uint8_t* levels = block + every * form.sub_nbytes() + sub_block % every * form.level_nbytes() + j;
    const uint8_t* scales = block + every * (form.sub_nbytes() + form.level_nbytes()) + j * form.factor_nbytes() / kColumns;
    const float scale = factor(scales, form.wide_scales);
    const float minimum = form.minima ? factor(scales + form.factor_nbytes(), form.wide_scales) : 0.0f;
    const uint8_t* from = block + sub_block % every * form.sub_nbytes() + j / 16 * (form.sub_nbytes() / 2) + 4 * (j % 16);
    const size_t start = sub_block * kSubBlock, count = inner - start < kSubBlock ? inner - start : kSubBlock;
    for (size_t k = 0; k < count; k++) {
      const int quant = quant_at(form, from, k);
      const size_t part = k * parts / kSubBlock;
      const auto times = [&](float value, size_t place) {
        return form.levels == 0 ? value : value * static_cast<int8_t>(levels[place * kColumns]);
      };
      const float value = static_cast<float>(quant - form.zero()), by = times(scale, part);
      out[start + k] = form.minima ? std::fma(value, by, times(minimum, parts + part)) : value * by;
    }
  }
}

}  // namespace edgedecode

using namespace edgedecode;

// A matrix of N columns, with K in blocks of `block` (32, 64, 128 or 256); scales and minima as float32 [N, blocks].
// Floats have blocks of 32 and no scales.
struct EdgedecodeMatrix {
  const uint8_t* packed;  // [N, blocks, block * bits / 8]; values of 5 and 6 bits are a byte each
  const float* scales;
  const float* minima;           // null: none, and the packed values have a zero point
  const int8_t* levels;          // [N, blocks, block / 32 * parts]; null: none
  const int8_t* minimum_levels;  // the same for minima
  int64_t columns, blocks, block, bits, wide_scales, parts, bfloat16, table;

  Form form() const {
    return {static_cast<int>(bits), static_cast<int>(block / kSubBlock), wide_scales != 0, minima != nullptr,
            levels == nullptr ? 0 : static_cast<int>(parts), bfloat16 != 0, static_cast<int>(table)};
  }
};

// Bytes of the matrix as tiles.
EDGE_EXPORT int64_t edgedecode_prepared_nbytes(const EdgedecodeMatrix* matrix) {
  const Form form = matrix->form();
  const size_t tiles = (matrix->columns + kColumns - 1) / kColumns;
  return static_cast<int64_t>(tiles * form.tile_nbytes(matrix->blocks * form.scale_every));
}

// Returns bit 0 if a scale or a minimum is not a half-precision number, and bit 1 if one is infinite or NaN.
EDGE_EXPORT int32_t edgedecode_inspect(const EdgedecodeMatrix* matrix) {
  int32_t found = 0;
  const int64_t count = matrix->form().floats() ? 0 : matrix->columns * matrix->blocks;
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
  const Form form = matrix->form();
  const size_t every = form.scale_every, blocks = matrix->blocks, sub_blocks = blocks * every, bits = form.bits;
  const size_t row_nbytes = sub_blocks * kSubBlock * (bits == 5 || bits == 6 ? 8 : bits) / 8, parts = form.parts();
  const size_t sub_nbytes = form.sub_nbytes(), level_nbytes = form.level_nbytes(), quants = every * sub_nbytes;
  for (int64_t tile = first; tile < last; tile++, out += form.tile_nbytes(sub_blocks)) {
    memset(out, 0, form.tile_nbytes(sub_blocks));
    if (form.floats()) {
      const size_t size = bits / 8;
      for (size_t j = 0; j < kColumns && tile * kColumns + j < static_cast<size_t>(matrix->columns); j++)
        for (size_t k = 0; k < sub_blocks * kSubBlock; k++)
          memcpy(out + (k * kColumns + j) * size, matrix->packed + (tile * kColumns + j) * row_nbytes + k * size, size);
      continue;
    }
    for (size_t j = 0; j < kColumns && tile * kColumns + j < static_cast<size_t>(matrix->columns); j++) {
      const size_t column = tile * kColumns + j;
      const uint8_t* from = matrix->packed + column * row_nbytes;
      for (size_t i = 0; i < sub_blocks * 8; i++) {  // four values each, in K order within a column
        const size_t sub_block = i / 8;
        uint8_t* to = out + sub_block / every * form.block_nbytes() + sub_block % every * sub_nbytes + j / 16 * (sub_nbytes / 2) +
                      4 * (j % 16);
        uint8_t four[4];
        for (size_t k = 0; k < 4; k++) four[k] = bits == 4 ? from[2 * i + k / 2] >> k % 2 * 4 & 15 : from[4 * i + k];
        put_quants(form, four, i % 8, to);
      }
      for (size_t block = 0; block < blocks; block++) {
        uint8_t* levels = out + block * form.block_nbytes() + quants + j;
        for (size_t i = 0; form.levels != 0 && i < every * parts; i++) {
          const size_t at = (column * blocks + block) * every * parts + i;
          uint8_t* level = levels + i / parts * level_nbytes + i % parts * kColumns;
          *level = static_cast<uint8_t>(matrix->levels[at]);
          if (form.minima) level[parts * kColumns] = static_cast<uint8_t>(matrix->minimum_levels[at]);
        }
        uint8_t* to = levels - j + every * level_nbytes + j * form.factor_nbytes() / kColumns;
        put_factor(matrix->scales[column * blocks + block], form.wide_scales, to);
        if (form.minima) put_factor(matrix->minima[column * blocks + block], form.wide_scales, to + form.factor_nbytes());
      }
    }
  }
}

// Writes one column's weights from the tiles to `out`, [blocks * block].
EDGE_EXPORT void edgedecode_unpack(const EdgedecodeMatrix* matrix, const uint8_t* tiles, int64_t column, float* out) {
  const Form form = matrix->form();
  const size_t sub_blocks = matrix->blocks * form.scale_every;
  unpack_column({tiles, sub_blocks, form}, column, sub_blocks * kSubBlock, out);
}

EDGE_EXPORT const char* edgedecode_kernels() { return kernels()->name; }
EDGE_EXPORT int32_t edgedecode_has_kernels(const char* name) { return kernels_named(name) != nullptr; }
EDGE_EXPORT int32_t edgedecode_choose_kernels(const char* name) { return choose_kernels(name); }
