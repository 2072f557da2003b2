// The kernels, written once over the vectors of an instruction set; included inside its namespace (see vectors.h).

// ---- Rounding of activations -------------------------------------------------------------------------------------

// Rounds rows first to last - 1. A sub-block's scale is its largest magnitude over 127 (over 127 * 256 with two
// planes). A value that is infinite or not a number makes the scale NaN, so that the products are NaN, never wrong.
template <int BITS, int PLANES>
static void round_planes(const float* x, size_t columns, size_t first, size_t last, const Rounded& out) {
  using D = Dot<BITS, PLANES>;
  constexpr size_t kVectors = kSubBlock / kLanes;
  constexpr float kLargest = PLANES == 1 ? 127.0f : 127.0f * 256.0f;
  for (size_t row = first; row < last; row++) {
    const size_t chunk = row / kChunk * kChunk, together = out.rows - chunk < kChunk ? out.rows - chunk : kChunk;
    for (size_t block = 0; block < out.sub_blocks; block++) {
      const size_t at = chunk * out.sub_blocks + block * together + row - chunk;
      int8_t* values = out.values + at * D::kValueNbytes;
      const float* p = x + row * columns + block * kSubBlock;
      float padded[kSubBlock];
      if (block * kSubBlock + kSubBlock > columns) {  // a width that is no multiple of the weights' blocks
        const size_t left = columns > block * kSubBlock ? columns - block * kSubBlock : 0;
        memset(padded, 0, sizeof padded);
        if (left != 0) memcpy(padded, p, left * sizeof(float));
        p = padded;
      }
      VF largest = vset(0.0f), poison = vset(0.0f);
      for (size_t i = 0; i < kVectors; i++) {
        VF v = vload(p + i * kLanes);
        largest = vmax(largest, vabs(v));
        poison = vfma(v, vset(0.0f), poison);
      }
      float lanes[2][kLanes];
      vstore(lanes[0], largest);
      vstore(lanes[1], poison);
      float most = 0.0f, bad = 0.0f;
      for (size_t i = 0; i < kLanes; i++) {
        most = lanes[0][i] > most ? lanes[0][i] : most;
        bad += lanes[1][i];
      }
      // Below the least normal number the reciprocal would overflow: such a block is all zeros.
      const bool tiny = most < 1e-30f || bad != 0.0f;  // NaN differs from 0: such a block's scale is NaN
      const float inverse = tiny ? 0.0f : kLargest / most;
      VI sums[2] = {vset_int(0), vset_int(0)};  // of either half
      for (size_t i = 0; i < kVectors; i++) {
        const VI v = tiny ? vset_int(0) : vint(vmul(vload(p + i * kLanes), vset(inverse)));
        VI& sum = sums[2 * i / kVectors];
        sum = vadd_int(sum, v);
        D::keep(values, i * kLanes, v);
      }
      out.scales[at] = (tiny ? 0.0f : most / kLargest) + bad;
      if (out.parts == 1) {
        out.sums[at] = vsum_int(vadd_int(sums[0], sums[1]));
      } else {
        out.sums[2 * at] = vsum_int(sums[0]);
        out.sums[2 * at + 1] = vsum_int(sums[1]);
      }
    }
  }
}

static void round_rows(const float* x, size_t columns, size_t first, size_t last, const Rounded& out) {
  if (out.bits == 4)
    return out.planes == 1 ? round_planes<4, 1>(x, columns, first, last, out) : round_planes<4, 2>(x, columns, first, last, out);
  return out.planes == 1 ? round_planes<8, 1>(x, columns, first, last, out) : round_planes<8, 2>(x, columns, first, last, out);
}

// ---- Products with quantized weights -----------------------------------------------------------------------------

// Bytes by which the weights are asked for before they are used: from memory into the second cache, and from there into
// the first. From memory into the first they held up the loads of those in use (docs/kernels.md).
constexpr size_t kAhead = 16384, kSoon = 2048;
static inline void ask_memory(const uint8_t* from, size_t nbytes) {
#if defined(__GNUC__)
  for (size_t line = 0; line < nbytes; line += 64) __builtin_prefetch(from + line, 0, 2);
#endif
}

static inline void ask_ahead(const void* from) {
#if defined(__GNUC__)
  __builtin_prefetch(static_cast<const uint8_t*>(from) + kAhead, 0, 2);
  __builtin_prefetch(static_cast<const uint8_t*>(from) + kSoon);
#endif
}

struct Rows {  // one chunk of the rounded rows
  const int8_t* values;
  const float* scales;
  const int32_t* sums;
  size_t count;
};

template <int N>
struct Constant {
  static constexpr int value = N;
};

// The columns of a tile times the rows of a chunk: integer dot products over each sub-block, exact, then one fma a
// sub-block in the order of K. A tile is read once, from the first byte to the last. kLanes columns make a unit; kUnits
// of them are multiplied together and share the loads of the activations. Weights are unpacked once for all rows, with
// two halves 16 of a sub-block's 32 at a time. ONE: the chunk is one row, whose sums stay in registers. MINIMA: a second
// fma adds a minimum times the sum of the activations. LEVELS: as in Form; with 2, each half of a sub-block is summed up
// by itself.
template <int BITS, int PLANES, bool ONE, bool MINIMA, int LEVELS>
EDGE_INLINE void multiply(const Product& job, const uint8_t* tile, const Rows& x, float (*out)[kColumns]) {
  using D = Dot<BITS, PLANES>;
  constexpr size_t kBytes = nbytes_of(BITS);  // of a sub-block: 16 columns, then the other 16
  constexpr int UNITS = kUnits, PARTS = LEVELS == 2 ? 2 : 1;
  constexpr size_t kLevelNbytes = kColumns * LEVELS * (MINIMA ? 2 : 1);
  constexpr int kStart = (MINIMA ? zero_of(BITS) : 0) - D::kZeroPoint;  // of a dot product, for each 1 of the activations
  constexpr int kTurns = static_cast<int>(kColumns / kLanes) / UNITS;
  const size_t rows = ONE ? 1 : x.count, every = job.form.scale_every;
  const bool wide = job.form.wide_scales;
  const uint8_t* table = kTables[job.form.table == 0 ? 0 : job.form.table - 1];
  const int8_t* a = x.values;
  const float* factor = x.scales;
  const int32_t* total = x.sums;
  const size_t factor_nbytes = kColumns * (wide ? 4 : 2);
  const size_t behind = every * kLevelNbytes + factor_nbytes * (MINIMA ? 2 : 1);  // bytes of a block behind its sub-blocks
  VF one[kTurns * UNITS];
  VI part[ONE ? 1 : kChunk][UNITS];
  for (int u = 0; u < kTurns * UNITS; u++) one[u] = vset(0.0f);
  if (!ONE)
    for (size_t m = 0; m < rows; m++)
      for (int u = 0; u < kTurns * UNITS; u++) vstore(out[m] + u * kLanes, vset(0.0f));
  const uint8_t *sub_block = tile, *levels = tile + every * kBytes;
  size_t left = every;  // sub-blocks in front of these levels and scales
  for (size_t block = 0; block < job.sub_blocks; block++) {
    const uint8_t* scales = levels + left * kLevelNbytes;
    for (int turn = 0; turn < kTurns; turn++) {
      // A turn's share of the next lines, in two parts: all lines of a sub-block at once would hold up what follows.
      const auto ask = [&](size_t from, size_t to) {
        ask_memory(sub_block + kAhead + from, to - from);
#if defined(__GNUC__)
        for (size_t line = from; line < to; line += 64) __builtin_prefetch(sub_block + kSoon + line);
#endif
      };
      const size_t begin = turn * (kBytes / kTurns), middle = begin + kBytes / kTurns / 2 / 64 * 64;
      const size_t end = begin + kBytes / kTurns + (turn == kTurns - 1 && left == 1 ? behind : 0);
      ask(begin, middle);
      const uint8_t* quants[UNITS];
      VF scale[PARTS][UNITS], minimum[PARTS][UNITS];
      for (int u = 0; u < UNITS; u++) {
        const size_t column = (turn * UNITS + u) * kLanes;
        quants[u] = sub_block + column / 16 * (kBytes / 2) + column % 16 * 4;
        const auto factors = [&](const uint8_t* from) {
          return wide ? vload(reinterpret_cast<const float*>(from) + column)
                      : vhalf(reinterpret_cast<const uint16_t*>(from) + column);
        };
        const VF most = factors(scales), lowest = MINIMA ? factors(scales + factor_nbytes) : most;
        for (int p = 0; p < PARTS; p++) {
          const auto level = [&](int place) {
            return vbytes(reinterpret_cast<const int8_t*>(levels) + place * kColumns + column);
          };
          scale[p][u] = LEVELS == 0 ? most : vmul(most, level(p));
          minimum[p][u] = !MINIMA || LEVELS == 0 ? lowest : vmul(lowest, level(PARTS + p));
        }
      }
      VW w[UNITS][8];
      const auto begun = [&](size_t m, int p, VI* sums) {
        for (int u = 0; u < UNITS; u++) sums[u] = vset_int(kStart == 0 ? 0 : kStart * total[m * PARTS + p]);
      };
      const auto sum_up = [&](size_t m, int p, const VI* sums) {
        const VF by = vset(factor[m]), more = vset(MINIMA ? factor[m] * static_cast<float>(total[m * PARTS + p]) : 0.0f);
        for (int u = 0; u < UNITS; u++) {
          if (ONE) {
            VF& sum = one[turn * UNITS + u];
            sum = vfma(vfloat(sums[u]), vmul(scale[p][u], by), sum);
            if (MINIMA) sum = vfma(minimum[p][u], more, sum);
          } else {
            float* to = out[m] + (turn * UNITS + u) * kLanes;
            const VF sum = vfma(vfloat(sums[u]), vmul(scale[p][u], by), vload(to));
            vstore(to, MINIMA ? vfma(minimum[p][u], more, sum) : sum);
          }
        }
      };
      if (D::kHalves == 2) {
        for (int u = 0; u < UNITS; u++) D::unpack(quants[u], 0, table, w[u]);
        for (size_t m = 0; m < rows; m++) {
          VI* sums = part[ONE || PARTS == 2 ? 0 : m];
          begun(m, 0, sums);
          D::template add<UNITS>(w, a + m * D::kValueNbytes, sums);
          if (PARTS == 2) sum_up(m, 0, sums);
        }
      }
      if constexpr (D::kPairs && !ONE) {
        for (int u = 0; u < UNITS; u++) D::unpack_pairs(quants[u], table, w[u]);
        ask(middle, end);
        for (size_t m = 0; m < rows; m += 2) {
          const size_t n = m + 1 < rows ? m + 1 : m;  // the last of an odd number goes with itself
          const auto add_part = [&](auto number) {
            constexpr int p = decltype(number)::value, kCount = 8 / PARTS, kFirst = p * kCount;
            VI first[UNITS], second[UNITS];
            D::template add_pair<UNITS, kFirst, kFirst + kCount>(w, a + m * D::kValueNbytes, a + n * D::kValueNbytes, first,
                                                                second);
            for (int u = 0; MINIMA && u < UNITS; u++) {
              first[u] = vadd_int(first[u], vset_int(kStart * total[m * PARTS + p]));
              second[u] = vadd_int(second[u], vset_int(kStart * total[n * PARTS + p]));
            }
            sum_up(m, p, first);
            if (n != m) sum_up(n, p, second);
          };
          add_part(Constant<0>{});
          if constexpr (PARTS == 2) add_part(Constant<1>{});
        }
      } else {
        for (int u = 0; u < UNITS; u++) D::unpack(quants[u], D::kHalves - 1, table, w[u]);
        ask(middle, end);
        for (size_t m = 0; m < rows; m++) {
          const auto add_part = [&](auto number) {
            constexpr int p = decltype(number)::value, kCount = D::kHalves == 2 ? 8 : 8 / PARTS;
            constexpr int kFirst = D::kHalves == 2 ? 0 : p * kCount;
            VI sums[UNITS];
            if (D::kHalves == 2 && PARTS == 1)
              for (int u = 0; u < UNITS; u++) sums[u] = part[ONE ? 0 : m][u];
            else
              begun(m, p, sums);
            D::template add<UNITS, kFirst, kFirst + kCount>(
                w, a + m * D::kValueNbytes + (D::kHalves - 1) * D::kValueNbytes / 2, sums);
            sum_up(m, p, sums);
          };
          if constexpr (D::kHalves == 1) add_part(Constant<0>{});
          if constexpr (D::kHalves == 2 || PARTS == 2) add_part(Constant<PARTS - 1>{});
        }
      }
    }
    a += rows * D::kValueNbytes;
    factor += rows;
    total += rows * PARTS;
    sub_block += kBytes;
    levels += kLevelNbytes;
    if (--left == 0) {
      sub_block = scales + factor_nbytes * (MINIMA ? 2 : 1);
      levels = sub_block + every * kBytes;
      left = every;
    }
  }
  if (ONE)
    for (int u = 0; u < kTurns * UNITS; u++) vstore(out[0] + u * kLanes, one[u]);
}

static inline VF gated(Gate gate, VF x) {
  return gate == Gate::kSilu ? vmul(x, vsigmoid(x)) : vgelu_tanh(x);
}

// A weight in float16, bfloat16 or float32.
static inline VF vweight(const uint16_t* p) { return vhalf(p); }
static inline VF vweight(const BFloat16* p) { return vbfloat16(p); }
static inline VF vweight(const float* p) { return vload(p); }
static inline float weight(const uint16_t* p) { return half_to_float(*p); }
static inline float weight(const BFloat16* p) { return bfloat16_to_float(*p); }
static inline float weight(const float* p) { return *p; }

// Rows that share such a weight once it is loaded: as many as there are registers for their sums.
constexpr int kDeltaRows = kLanes == 16 ? 4 : kLanes == 8 ? 1 : 2;

// Sums of `ROWS` rows and TILES * 16 columns. Each runs in four chains of fmas, step k of `inner` in chain k modulo 4, so
// that no step waits for the one before it.
template <class T, int ROWS, int TILES>
static inline void float_sums(const FloatProduct& job, size_t row, size_t column) {
  constexpr size_t kChains = 4, kVectors = TILES * kGroups;
  const size_t whole = job.inner / kChains * kChains;
  const T* w = static_cast<const T*>(job.w) + column;
  const float* x = job.x + row * job.stride;
  VF sums[kChains][ROWS][kVectors];
  for (size_t c = 0; c < kChains; c++)
    for (int r = 0; r < ROWS; r++)
      for (size_t g = 0; g < kVectors; g++) sums[c][r][g] = vset(0.0f);
  const auto step = [&](size_t k, size_t c) {
    VF values[kVectors];
    ask_ahead(w + k * job.columns);
    for (size_t g = 0; g < kVectors; g++) values[g] = vweight(w + k * job.columns + g * kLanes);
    for (int r = 0; r < ROWS; r++) {
      const VF a = vset(x[r * job.stride + k]);
      for (size_t g = 0; g < kVectors; g++) sums[c][r][g] = vfma(a, values[g], sums[c][r][g]);
    }
  };
  for (size_t k = 0; k < whole; k += kChains)
    for (size_t c = 0; c < kChains; c++) step(k + c, c);
  for (size_t k = whole; k < job.inner; k++) step(k, k - whole);
  for (int r = 0; r < ROWS; r++)
    for (size_t g = 0; g < kVectors; g++)
      vstore(job.y + (row + r) * job.columns + column + g * kLanes,
             vadd(vadd(sums[0][r][g], sums[1][r][g]), vadd(sums[2][r][g], sums[3][r][g])));
}

// 16 columns of all rows.
template <class T>
static inline void float_rows(const FloatProduct& job, size_t column) {
  size_t row = 0;
  for (; row + kDeltaRows <= job.rows; row += kDeltaRows) float_sums<T, kDeltaRows, 1>(job, row, column);
  for (; row < job.rows; row++) float_sums<T, 1, 1>(job, row, column);
}

template <class T>
static void float_columns(const FloatProduct& job, size_t first, size_t last) {
  size_t column = first;
  for (; column + kTile <= last; column += kTile) float_rows<T>(job, column);
  for (; column < last; column++)
    for (size_t row = 0; row < job.rows; row++) {
      float sums[4] = {};
      for (size_t k = 0; k < job.inner; k++)
        sums[k % 4] = fused(job.x[row * job.stride + k], weight(static_cast<const T*>(job.w) + k * job.columns + column),
                            sums[k % 4]);
      job.y[row * job.columns + column] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}

// Adds an adapter's delta to ROWS rows of one tile, whose weights are [rank, 32]. Even and odd steps of the rank are two
// chains of fmas, the even one begun with what is there.
template <class T, int ROWS>
static inline void add_tile(const T* wide, const float* narrow, size_t stride, size_t rank, float (*out)[kColumns]) {
  constexpr size_t kVectors = 2;
  for (size_t first = 0; first < kColumns; first += kVectors * kLanes) {
    VF sums[2][ROWS][kVectors];
    for (int r = 0; r < ROWS; r++)
      for (size_t v = 0; v < kVectors; v++) {
        sums[0][r][v] = vload(out[r] + first + v * kLanes);
        sums[1][r][v] = vset(0.0f);
      }
    const auto step = [&](size_t k, int chain) {
      VF values[kVectors];
      for (size_t v = 0; v < kVectors; v++) values[v] = vweight(wide + k * kColumns + first + v * kLanes);
      for (int r = 0; r < ROWS; r++) {
        const VF a = vset(narrow[r * stride + k]);
        for (size_t v = 0; v < kVectors; v++) sums[chain][r][v] = vfma(a, values[v], sums[chain][r][v]);
      }
    };
    const size_t even = rank / 2 * 2;
    for (size_t k = 0; k < even; k += 2) step(k, 0), step(k + 1, 1);
    if (even != rank) step(even, 0);
    for (int r = 0; r < ROWS; r++)
      for (size_t v = 0; v < kVectors; v++)
        vstore(out[r] + first + v * kLanes, vadd(sums[0][r][v], sums[1][r][v]));
  }
}

// Adds an adapter's delta to one tile of rows row to row + count - 1.
template <class T>
static void add_delta(const LowRank& delta, size_t row, size_t count, size_t column, float (*out)[kColumns]) {
  const size_t part = column >= delta.third ? 2 : column >= delta.second ? 1 : 0, stride = delta.parts * delta.rank;
  const T* wide = static_cast<const T*>(delta.wide) + column * delta.rank;
  const float* narrow = delta.narrow + row * stride + part * delta.rank;
#if defined(__GNUC__)
  for (size_t at = 0; at < delta.rank * kColumns; at += 64 / sizeof(T)) __builtin_prefetch(wide + delta.rank * kColumns + at);
#endif
  size_t m = 0;
  for (; m + kDeltaRows <= count; m += kDeltaRows)
    add_tile<T, kDeltaRows>(wide, narrow + m * stride, stride, delta.rank, out + m);
  for (; m < count; m++) add_tile<T, 1>(wide, narrow + m * stride, stride, delta.rank, out + m);
}

static inline void add_low_rank(const LowRank& delta, size_t row, size_t count, size_t column, float (*out)[kColumns]) {
  if (delta.rank == 0) return;
  delta.half ? add_delta<uint16_t>(delta, row, count, column, out) : add_delta<float>(delta, row, count, column, out);
}

// y = x · matrix (+ bias) (+ delta) for the columns of tiles first to last - 1; `gates`: y = gate(y) * that.
// times(tile, row, count, out): the products of `count` rows from `row` on with one tile.
template <class Times>
static void matrix_tiles(const Product& job, const uint8_t* matrix, const float* bias, const LowRank& delta, bool gates,
                         size_t first, size_t last, const Times& times) {
  const size_t nbytes = job.form.tile_nbytes(job.sub_blocks);
  ask_memory(matrix + first * nbytes, kAhead);
  for (size_t tile = first; tile < last; tile++) {
    const size_t column = tile * kColumns;
    const size_t valid = job.columns - column < kColumns ? job.columns - column : kColumns;
    float added[kColumns] = {};
    if (bias != nullptr) memcpy(added, bias + column, valid * sizeof(float));
    for (size_t row = 0; row < job.rows; row += kChunk) {
      const size_t count = job.rows - row < kChunk ? job.rows - row : kChunk;
      alignas(64) float out[kChunk][kColumns];
      times(matrix + tile * nbytes, row, count, out);
      if (bias != nullptr)
        for (size_t m = 0; m < count; m++)
          for (size_t g = 0; g < kColumns; g += kLanes) vstore(out[m] + g, vadd(vload(out[m] + g), vload(added + g)));
      add_low_rank(delta, row, count, column, out);
      for (size_t m = 0; m < count; m++) {
        float* y = job.y + (row + m) * job.columns + column;
        if (gates) {
          alignas(64) float gate[kColumns] = {};
          memcpy(gate, y, valid * sizeof(float));
          for (size_t g = 0; g < kColumns; g += kLanes)
            vstore(out[m] + g, vmul(gated(job.gate, vload(gate + g)), vload(out[m] + g)));
        }
        memcpy(y, out[m], valid * sizeof(float));
      }
    }
  }
}

// All columns of the one matrix come before those of the other: two streams of weights in turn are read more slowly.
template <class Times>
static void both_matrices(const Product& job, size_t first, size_t last, const Times& times) {
  matrix_tiles(job, job.weights, job.bias, job.delta, false, first, last, times);
  if (job.up != nullptr) matrix_tiles(job, job.up, nullptr, job.up_delta, true, first, last, times);
}

template <int BITS, int PLANES, bool MINIMA, int LEVELS>
static void tiles_of(const Product& job, size_t first, size_t last) {
  both_matrices(job, first, last, [&](const uint8_t* tile, size_t row, size_t count, float (*out)[kColumns]) {
    const size_t at = row * job.sub_blocks;
    const Rows x = {job.x.values + at * Dot<BITS, PLANES>::kValueNbytes, job.x.scales + at, job.x.sums + at * job.x.parts,
                    count};
    if (count == 1)
      multiply<BITS, PLANES, true, MINIMA, LEVELS>(job, tile, x, out);
    else
      multiply<BITS, PLANES, false, MINIMA, LEVELS>(job, tile, x, out);
  });
}

template <class T>
static void float_tiles(const Product& job, size_t first, size_t last) {
  both_matrices(job, first, last, [&](const uint8_t* tile, size_t row, size_t count, float (*out)[kColumns]) {
    const FloatProduct part = {job.floats + row * job.inner, tile, false, reinterpret_cast<float*>(out), count,
                               job.inner, kColumns, job.inner};
    // Few rows leave registers for all 32 columns.
    for (size_t m = 0; kLanes == 16 && count < kDeltaRows && m < count; m++) float_sums<T, 1, 2>(part, m, 0);
    if (kLanes < 16 || count >= kDeltaRows)
      for (size_t column = 0; column < kColumns; column += kTile) float_rows<T>(part, column);
  });
}

template <int BITS, int PLANES, bool MINIMA, int LEVELS>
static void tiles_if_served(const Product& job, size_t first, size_t last) {
  if constexpr (served(BITS, PLANES, MINIMA, LEVELS)) tiles_of<BITS, PLANES, MINIMA, LEVELS>(job, first, last);
}

template <int BITS, int PLANES, bool MINIMA>
static void tiles_with(const Product& job, size_t first, size_t last) {
  if (job.form.levels == 1) return tiles_if_served<BITS, PLANES, MINIMA, 1>(job, first, last);
  if (job.form.levels == 2) return tiles_if_served<BITS, PLANES, MINIMA, 2>(job, first, last);
  return tiles_if_served<BITS, PLANES, MINIMA, 0>(job, first, last);
}

template <int BITS>
static void tiles_of_bits(const Product& job, size_t first, size_t last) {
  if (job.x.planes == 1) return tiles_with<BITS, 1, false>(job, first, last);
  return job.form.minima ? tiles_with<BITS, 2, true>(job, first, last) : tiles_with<BITS, 2, false>(job, first, last);
}

// The form of the weights is one that is served.
static void product_tiles(const Product& job, size_t first, size_t last) {
  switch (job.form.kind()) {
    case 32: return float_tiles<float>(job, first, last);
    case 16:
      return job.form.bfloat16 ? float_tiles<BFloat16>(job, first, last) : float_tiles<uint16_t>(job, first, last);
    case 8: return tiles_of_bits<8>(job, first, last);
    case 6: return tiles_of_bits<6>(job, first, last);
    case 5: return tiles_of_bits<5>(job, first, last);
    case 4: return tiles_of_bits<4>(job, first, last);
    default: return tiles_of_bits<kIndices>(job, first, last);
  }
}

// ---- Attention ---------------------------------------------------------------------------------------------------

// What an int8 cache keeps of a number: from `least` to 127.
static inline float rounded_to(float x, float scale, float least) {
  float q = scale == 0.0f ? 0.0f : x / scale;
  q = q < 127.0f ? q : 127.0f;
  q = q > least ? q : least;
  return std::nearbyint(q);
}

// The first number of an int8 key that is not finite, or whose value is not: other keys begin at -127. Whoever sees
// that slot has a score that is not a number.
constexpr int8_t kNotFinite = -128;

// Rotates `size` values: pairs (a, b) become (a cos - b sin, b cos + a sin), each sum one fma.
static void rotate(const Intake& in, int64_t position, const float* x, float* y, size_t size) {
  const size_t half = in.rotary / 2;
  if (in.cosines == nullptr) {
    memcpy(y, x, size * sizeof(float));
    return;
  }
  const float *cosines = in.cosines + position * half, *sines = in.sines + position * half;
  if (in.interleaved) {
    for (size_t i = 0; i < half; i++) {
      y[2 * i] = fused(-x[2 * i + 1], sines[i], x[2 * i] * cosines[i]);
      y[2 * i + 1] = fused(x[2 * i], sines[i], x[2 * i + 1] * cosines[i]);
    }
  } else {
    for (size_t i = 0; i < half; i++) y[i] = fused(-x[i + half], sines[i], x[i] * cosines[i]);
    for (size_t i = 0; i < half; i++) y[i + half] = fused(x[i], sines[i], x[i + half] * cosines[i]);
  }
  for (size_t i = in.rotary; i < size; i++) y[i] = x[i];
}

// Takes in rows first to last - 1: their keys and values go to slots settled + pending - rows + row.
static void take_in(const Intake& in, const Attention& job, size_t first, size_t last) {
  const size_t size = job.size, head_cache = job.capacity * size;
  float rotated[kMostSize];
  for (size_t row = first; row < last; row++) {
    const size_t slot = job.settled + job.pending - job.appended + job.place(row);
    const int64_t position = in.cosines == nullptr ? 0 : in.positions[job.place(row)];
    for (size_t head = 0; in.q != nullptr && head < job.heads; head++) {
      float* to = in.queries + (row * job.heads + head) * size;
      const float* key_scales = job.int8_cache ? in.key_scales + head / (job.heads / job.kv_heads) * size : nullptr;
      rotate(in, position, in.q + row * in.q_stride + head * size, to, size);
      for (size_t d = 0; d < size; d++) {
        to[d] *= in.scale;
        if (key_scales != nullptr) to[d] *= key_scales[d];  // an int8 key times its scale, moved to the query
      }
    }
    for (size_t head = 0; in.k != nullptr && head < job.kv_heads; head++) {
      const float* value = in.v + row * in.v_stride + head * size;
      rotate(in, position, in.k + row * in.k_stride + head * size, rotated, size);
      const size_t key_at = head * head_cache + slot / kTile * kTile * size + slot % kTile;
      const size_t value_at = head * head_cache + slot * size;
      if (job.int8_cache) {
        int8_t *keys = static_cast<int8_t*>(job.keys) + key_at, *values = static_cast<int8_t*>(job.values) + value_at;
        float poison = 0.0f;
        for (size_t d = 0; d < size; d++) {
          keys[d * kTile] = static_cast<int8_t>(rounded_to(rotated[d], in.key_scales[head * size + d], -127.0f));
          values[d] = static_cast<int8_t>(rounded_to(value[d], in.value_scales[head * size + d], -128.0f));
          poison += rotated[d] * 0.0f + value[d] * 0.0f;
        }
        if (poison != 0.0f) keys[0] = kNotFinite;
      } else {
        float *keys = static_cast<float*>(job.keys) + key_at, *values = static_cast<float*>(job.values) + value_at;
        for (size_t d = 0; d < size; d++) keys[d * kTile] = rotated[d];
        memcpy(values, value, size * sizeof(float));
      }
    }
  }
}

template <class T>
static inline VF vcached(const T* p);
template <>
inline VF vcached<float>(const float* p) { return vload(p); }
template <>
inline VF vcached<int8_t>(const int8_t* p) { return vbytes(p); }

// Scores of QUERIES queries with the 16 slots of each of TILES tiles: a lane is a slot, summed over the size in one order,
// so a score does not depend on the slot it is in. Few queries take several tiles at once, so that no sum waits for itself.
// OWN: each slot has a query of its own: number owners[slot] of `width` that lie side by side, [size][width].
template <class T, int QUERIES, int TILES, bool OWN>
static inline void tile_scores(const T* tiles, size_t size, const float* const* queries, float* scores, size_t stride,
                               const int32_t* owners, size_t width) {
  constexpr int kTogether = QUERIES * TILES <= 8 ? TILES : 8 / QUERIES;
  for (int first = 0; first < TILES; first += kTogether)
    for (size_t group = 0; group < kTile; group += kLanes) {
      const T* tile = tiles + first * kTile * size + group;
      VF sums[kTogether][QUERIES];
      for (int t = 0; t < kTogether; t++)
        for (int q = 0; q < QUERIES; q++) sums[t][q] = vset(0.0f);
      VI own{};
      if constexpr (OWN) own = vload_int(owners + group);
      for (size_t d = 0; d < size; d++)
        for (int t = 0; t < kTogether; t++) {
          VF key = vcached<T>(tile + (t * size + d) * kTile);
          for (int q = 0; q < QUERIES; q++)
            if constexpr (OWN)
              sums[t][q] = vfma(vpick(queries[q] + d * width, own), key, sums[t][q]);
            else
              sums[t][q] = vfma(vset(queries[q][d]), key, sums[t][q]);
        }
      for (int t = 0; t < kTogether; t++)
        for (int q = 0; q < QUERIES; q++) vstore(scores + q * stride + (first + t) * kTile + group, sums[t][q]);
    }
}

template <class T, int TILES, bool OWN = false>
static inline void all_scores(const T* tiles, size_t size, const float* const* queries, size_t count, float* scores,
                              size_t stride, const int32_t* owners = nullptr, size_t width = 0) {
  size_t q = 0;
  const auto some = [&](auto scored, size_t each) {
    for (; q + each <= count; q += each) scored(tiles, size, queries + q, scores + q * stride, stride, owners, width);
  };
  some(tile_scores<T, 8, TILES, OWN>, 8);
  some(tile_scores<T, 4, TILES, OWN>, 4);
  some(tile_scores<T, 2, TILES, OWN>, 2);
  some(tile_scores<T, 1, TILES, OWN>, 1);
}

// Makes the scores of `count` queries with a tile's slots that are marked not a number. A float cache marks nothing.
static inline void spread_poison(const float*, size_t, float*, size_t) {}
static inline void spread_poison(const int8_t* tile, size_t count, float* scores, size_t stride) {
  bool any = false;
  for (size_t i = 0; i < kTile; i++) any |= tile[i] == kNotFinite;
  if (!any) return;
  for (size_t i = 0; i < kTile; i++)
    for (size_t q = 0; tile[i] == kNotFinite && q < count; q++) scores[q * stride + i] = NAN;
}

// Adds weight × value over slots first to last - 1, in this order, for QUERIES queries and VECTORS * kLanes of the size.
// With a path its slots first to last - 1, whose weights lie side by side.
template <class T, int QUERIES, int VECTORS>
static inline void add_values(const T* values, size_t size, size_t first, size_t last, const float* weights,
                              size_t stride, float* sums, const int32_t* path) {
  VF acc[QUERIES][VECTORS];
  for (int q = 0; q < QUERIES; q++)
    for (int i = 0; i < VECTORS; i++) acc[q][i] = vload(sums + q * size + i * kLanes);
  for (size_t slot = first; slot < last; slot++) {
    VF v[VECTORS];
    const T* value = values + (path == nullptr ? slot : path[slot]) * size;
    for (int i = 0; i < VECTORS; i++) v[i] = vcached<T>(value + i * kLanes);
    for (int q = 0; q < QUERIES; q++) {
      VF w = vset(weights[q * stride + slot]);
      for (int i = 0; i < VECTORS; i++) acc[q][i] = vfma(w, v[i], acc[q][i]);
    }
  }
  for (int q = 0; q < QUERIES; q++)
    for (int i = 0; i < VECTORS; i++) vstore(sums + q * size + i * kLanes, acc[q][i]);
}

constexpr int kValueVectors = kLanes == 16 ? 4 : 2;

template <class T, int QUERIES>
static inline void add_all_values(const T* values, size_t size, size_t first, size_t last, const float* weights,
                                  size_t stride, float* sums, const int32_t* path = nullptr) {
  size_t d = 0;
  for (; d + kValueVectors * kLanes <= size; d += kValueVectors * kLanes)
    add_values<T, QUERIES, kValueVectors>(values + d, size, first, last, weights, stride, sums + d, path);
  for (; d < size; d += kLanes) add_values<T, QUERIES, 1>(values + d, size, first, last, weights, stride, sums + d, path);
}

// One query vector: the positions it sees are low to length - 1; in a tree those from `settled` on are in the slots
// settled + path[i].
struct Seen {
  size_t low, length;
  const int32_t* path;
  const float* query;
  float* y;
};

// Which of a block's queries see the pending slots; `of` a tile's slots: of which row each is, or nobody's or several's.
// Query q is of row q % width.
struct Owners {
  static constexpr int32_t kNobody = -1, kSeveral = kQueries;
  size_t begin;  // the first slot of `slots`, a multiple of 16; before it all rows see all slots
  int32_t* slots;
  size_t width;
  float* queries;  // room to lay them side by side, see tile_scores

  const int32_t* of(size_t slot) const {
    alignas(64) static constexpr int32_t kAll[kTile] = {kSeveral, kSeveral, kSeveral, kSeveral, kSeveral, kSeveral,
                                                        kSeveral, kSeveral, kSeveral, kSeveral, kSeveral, kSeveral,
                                                        kSeveral, kSeveral, kSeveral, kSeveral};
    return slot < begin ? kAll : slots + slot - begin;
  }
};

// Makes weights of the scores at positions low to length - 1; returns 1 / their sum. The sum's order is by position
// modulo 16, so it does not depend on slots.
static inline float softmax(float* scores, const Seen& seen, float soft_cap) {
  VF largest = vset(-INFINITY);
  const size_t start = seen.low / kTile * kTile;
  const size_t stop = (seen.length + kTile - 1) / kTile * kTile;
  if (soft_cap != 0.0f)
    for (size_t p = start; p < stop; p += kLanes)
      vstore(scores + p, vmul(vset(soft_cap), vtanh(vdiv(vload(scores + p), vset(soft_cap)))));
  for (size_t p = start; p < seen.low; p++) scores[p] = -INFINITY;
  for (size_t p = seen.length; p < stop; p++) scores[p] = -INFINITY;
  for (size_t p = start; p < stop; p += kLanes) largest = vmax(largest, vload(scores + p));
  float lanes[kLanes];
  vstore(lanes, largest);
  float most = lanes[0];
  for (size_t i = 1; i < kLanes; i++) most = lanes[i] > most ? lanes[i] : most;
  VF sums[kGroups];
  for (size_t g = 0; g < kGroups; g++) sums[g] = vset(0.0f);
  for (size_t p = start; p < stop; p += kTile)
    for (size_t g = 0; g < kGroups; g++) {
      VF weight = vexp(vsub(vload(scores + p + g * kLanes), vset(most)));
      vstore(scores + p + g * kLanes, weight);
      sums[g] = vadd(sums[g], weight);
    }
  return 1.0f / sum16(sums);
}

// Adds what QUERIES queries see of slots 0 to common - 1, each from its own window's first slot on: what lies before it
// may be infinite, and a weight of 0 would not hide that.
template <class T, int QUERIES>
static inline void add_common(const T* values, size_t size, size_t common, const Seen* seen, const float* weights,
                              size_t stride, float* sums) {
  size_t from = 0;
  for (int q = 0; q < QUERIES; q++) from = seen[q].low > from ? seen[q].low : from;
  from = from < common ? from : common;
  for (int q = 0; q < QUERIES; q++)
    if (seen[q].low < from)
      add_all_values<T, 1>(values, size, seen[q].low, from, weights + q * stride, stride, sums + q * size);
  if (from < common) add_all_values<T, QUERIES>(values, size, from, common, weights, stride, sums);
}

// Attends with `count` queries of one key/value head. All of them see slots 0 to common - 1 at these positions.
template <class T>
static void attend_block(const Attention& job, size_t kv_head, const Seen* seen, size_t count, size_t common,
                         const Owners& owners, float* scores) {
  const size_t size = job.size, total = job.settled + job.pending;
  const size_t stride = score_stride(job);
  const T* keys = static_cast<const T*>(job.keys) + kv_head * job.capacity * size;
  const T* values = static_cast<const T*>(job.values) + kv_head * job.capacity * size;
  size_t low = total, longest = 0;
  const float* queries[kQueries];
  for (size_t q = 0; q < count; q++) {
    queries[q] = seen[q].query;
    low = seen[q].low < low ? seen[q].low : low;
    longest = seen[q].length > longest ? seen[q].length : longest;
  }
  const size_t last_slot = job.parents == nullptr ? longest : total;
  constexpr size_t kTogether = 4;  // tiles, with the same owners
  const size_t turns = (count + owners.width - 1) / owners.width;
  const float* beside[kQueries] = {};
  for (size_t slot = low / kTile * kTile; slot < last_slot;) {
    const int32_t* own = owners.of(slot);
    const auto alike = [&](size_t other) {
      return owners.of(other) == own || memcmp(owners.of(other), own, kTile * sizeof *own) == 0;
    };
    bool many = slot + kTogether * kTile <= last_slot;
    for (size_t t = 1; many && t < kTogether; t++) many = alike(slot + t * kTile);
    const size_t tiles = many ? kTogether : 1;
    const T* tile = keys + slot * size;
    int32_t most = Owners::kNobody;
    for (size_t i = 0; i < kTile; i++) most = own[i] > most ? own[i] : most;
    if (most == Owners::kSeveral || (most != Owners::kNobody && 2 * turns > count)) {
      if (many)
        all_scores<T, kTogether>(tile, size, queries, count, scores + slot, stride);
      else
        all_scores<T, 1>(tile, size, queries, count, scores + slot, stride);
      for (size_t t = 0; t < tiles; t++)
        spread_poison(tile + t * kTile * size, count, scores + slot + t * kTile, stride);
    } else if (most != Owners::kNobody) {
      if (beside[0] == nullptr)
        for (size_t q = 0; q < count; q++) {
          float* to = owners.queries + q / owners.width * size * owners.width;
          beside[q / owners.width] = to;
          for (size_t d = 0; d < size; d++) to[d * owners.width + q % owners.width] = queries[q][d];
        }
      constexpr size_t kSlots = kTogether * kTile;
      float found[kQueries / 2 * kSlots];
      if (many)
        all_scores<T, kTogether, true>(tile, size, beside, turns, found, kSlots, own, owners.width);
      else
        all_scores<T, 1, true>(tile, size, beside, turns, found, kSlots, own, owners.width);
      for (size_t t = 0; t < tiles; t++) spread_poison(tile + t * kTile * size, turns, found + t * kTile, kSlots);
      for (size_t i = 0; i < tiles * kTile; i++)
        if (own[i % kTile] != Owners::kNobody)
          for (size_t q = own[i % kTile], turn = 0; q < count; q += owners.width, turn++)
            scores[q * stride + slot + i] = found[turn * kSlots + i];
    }
    slot += tiles * kTile;
  }
  float inverses[kQueries];
  float* sums = scores + kQueries * stride;  // see score_floats
  memset(sums, 0, count * size * sizeof(float));
  for (size_t q = 0; q < count; q++) {
    float* own = scores + q * stride;
    if (job.parents != nullptr)  // move the path's scores from its slots to its positions, which never lie behind them
      for (size_t p = job.settled; p < seen[q].length; p++) own[p] = own[job.settled + seen[q].path[p - job.settled]];
    inverses[q] = softmax(own, seen[q], job.soft_cap);
  }
  if (low < common) {
    size_t q = 0;
    for (; q + 4 <= count; q += 4)
      add_common<T, 4>(values, size, common, seen + q, scores + q * stride, stride, sums + q * size);
    for (; q + 2 <= count; q += 2)
      add_common<T, 2>(values, size, common, seen + q, scores + q * stride, stride, sums + q * size);
    for (; q < count; q++)
      add_common<T, 1>(values, size, common, seen + q, scores + q * stride, stride, sums + q * size);
  }
  for (size_t q = 0; q < count; q++) {
    float *own = scores + q * stride, *sum = sums + q * size;
    if (job.parents == nullptr) {
      const size_t from = common > seen[q].low ? common : seen[q].low;
      if (from < seen[q].length) add_all_values<T, 1>(values, size, from, seen[q].length, own, stride, sum);
    } else {
      const size_t from = job.settled > seen[q].low ? 0 : seen[q].low - job.settled;  // a weight is at its position
      add_all_values<T, 1>(values + job.settled * size, size, from, seen[q].length - job.settled, own + job.settled,
                           stride, sum, seen[q].path);
    }
    for (size_t d = 0; d < size; d += kLanes) {
      VF y = vmul(vload(sum + d), vset(inverses[q]));
      if (job.int8_cache) y = vmul(y, vload(job.value_scales + kv_head * size + d));
      vstore(seen[q].y + d, y);
    }
  }
}

// Attends with queries first to last - 1 of one key/value head. In a chain query i is row i / group, head i % group of its
// group, so that a block has few rows; in a tree row i % rows, head i / rows, so that it has few queries of a row.
static void attend(const Attention& job, size_t kv_head, size_t first, size_t last, float* scores) {
  const size_t group = job.heads / job.kv_heads, total = job.settled + job.pending;
  const bool tree = job.parents != nullptr;
  const size_t begin = job.settled / kTile * kTile, end = (total + kTile - 1) / kTile * kTile;
  int32_t* paths = reinterpret_cast<int32_t*>(scores + kQueries * (score_stride(job) + job.size));
  int32_t* slots = paths + kQueries * job.pending;
  Owners owners{tree ? begin : end, slots, kQueries, reinterpret_cast<float*>(slots + job.pending + 2 * kTile)};
  for (size_t start = first; start < last; start += kQueries) {
    const size_t count = last - start < kQueries ? last - start : kQueries;
    Seen seen[kQueries];
    size_t common = job.settled;
    if (tree) {
      owners.width = job.rows < count ? job.rows : count;
      for (size_t slot = begin; slot < end; slot++)
        slots[slot - begin] = slot < job.settled ? Owners::kSeveral : Owners::kNobody;
    }
    for (size_t q = 0; q < count; q++) {
      const size_t row = tree ? (start + q) % job.rows : (start + q) / group;
      const size_t head = kv_head * group + (tree ? (start + q) / job.rows : (start + q) % group);
      seen[q].path = nullptr;
      seen[q].query = job.queries + (row * job.heads + head) * job.size;
      seen[q].y = job.y + (row * job.heads + head) * job.size;
      seen[q].length = job.block ? total : total - job.appended + job.place(row) + 1;
      if (tree && q >= owners.width) {
        seen[q].length = seen[q - owners.width].length;
        seen[q].path = seen[q - owners.width].path;
      } else if (tree) {
        int32_t *bottom = paths + (q + 1) * job.pending, *path = bottom;
        for (int32_t node = static_cast<int32_t>(job.pending - job.appended + job.place(row)); node >= 0; node = job.parents[node]) {
          int32_t& owner = slots[job.settled + node - begin];
          owner = owner == Owners::kNobody ? static_cast<int32_t>(q) : Owners::kSeveral;
          *--path = node;
        }
        seen[q].length = job.settled + (bottom - path);
        seen[q].path = path;
      } else if (q == 0 || seen[q].length < common) {
        common = seen[q].length;  // in a chain every row sees what the first one sees
      }
      seen[q].low = job.window != 0 && seen[q].length > job.window ? seen[q].length - job.window : 0;
    }
    if (job.int8_cache)
      attend_block<int8_t>(job, kv_head, seen, count, common, owners, scores);
    else
      attend_block<float>(job, kv_head, seen, count, common, owners, scores);
  }
}

// ---- What lies between the products ------------------------------------------------------------------------------

// y = x / sqrt(mean(x^2) + epsilon) * weight. Squares are summed by column modulo 16.
static void norm_rows(const Norm& job, size_t first, size_t last) {
  const size_t columns = job.columns, whole = columns / kTile * kTile;
  for (size_t row = first; row < last; row++) {
    const float* x = job.x + row * columns;
    float *sum = job.sum == nullptr ? nullptr : job.sum + row * columns, *y = job.y + row * columns;
    VF squares[kGroups];
    for (size_t g = 0; g < kGroups; g++) squares[g] = vset(0.0f);
    if (job.skip != nullptr) {  // the sum goes to y first where nobody else keeps it
      const float* skip = job.skip + row * columns;
      float* to = sum == nullptr ? y : sum;
      for (size_t i = 0; i < whole; i += kLanes) vstore(to + i, vadd(vload(x + i), vload(skip + i)));
      for (size_t i = whole; i < columns; i++) to[i] = x[i] + skip[i];
      x = to;
    }
    for (size_t i = 0; i < whole; i += kTile)
      for (size_t g = 0; g < kGroups; g++) {
        VF v = vload(x + i + g * kLanes);
        squares[g] = vfma(v, v, squares[g]);
      }
    float tail[kTile] = {};
    memcpy(tail, x + whole, (columns - whole) * sizeof(float));
    for (size_t g = 0; g < kGroups; g++) {
      VF v = vload(tail + g * kLanes);
      squares[g] = vfma(v, v, squares[g]);
    }
    const float mean = sum16(squares) / static_cast<float>(columns);
    const float inverse = 1.0f / sqrtf(mean + job.epsilon);
    for (size_t i = 0; i < whole; i += kLanes)
      vstore(y + i, vmul(vmul(vload(x + i), vset(inverse)), vload(job.weight + i)));
    for (size_t i = whole; i < columns; i++) y[i] = x[i] * inverse * job.weight[i];
  }
}

static inline VF pointwise_of(Pointwise kind, VF x) {
  switch (kind) {
    case Pointwise::kSigmoid: return vsigmoid(x);
    case Pointwise::kSilu: return vmul(x, vsigmoid(x));
    case Pointwise::kGeluTanh: return vgelu_tanh(x);
    default: return vtanh(x);
  }
}

static void pointwise(Pointwise kind, const float* x, float* y, size_t count) {
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) vstore(y + i, pointwise_of(kind, vload(x + i)));
  if (whole == count) return;
  float tail[kLanes] = {};
  memcpy(tail, x + whole, (count - whole) * sizeof(float));
  vstore(tail, pointwise_of(kind, vload(tail)));
  memcpy(y + whole, tail, (count - whole) * sizeof(float));
}

// Columns first to last - 1 of a product in float32.
static void float_product(const FloatProduct& job, size_t first, size_t last) {
  job.half ? float_columns<uint16_t>(job, first, last) : float_columns<float>(job, first, last);
}

// Rows first to last - 1. Channels are a multiple of kTile.
static void convolve(const Convolution& job, size_t first, size_t last) {
  const size_t before = job.count - 1;
  for (size_t row = first; row < last; row++) {
    const float *const* taps = job.before + row * before, *x = job.x + row * job.channels;
    for (size_t i = 0; i < job.channels; i += kLanes) {
      const float* weights = job.weights + i;
      VF sum = before == 0 ? vmul(vload(weights), vload(x + i)) : vmul(vload(weights), vload(taps[0] + i));
      for (size_t tap = 1; tap < before; tap++)
        sum = vfma(vload(weights + tap * job.channels), vload(taps[tap] + i), sum);
      if (before != 0) sum = vfma(vload(weights + before * job.channels), vload(x + i), sum);
      if (job.bias != nullptr) sum = vadd(sum, vload(job.bias + i));
      vstore(job.y + row * job.channels + i, vmul(sum, vload(job.gate + row * job.gate_stride + i)));
    }
  }
}

#include "delta_rows.h"

static const Kernels kTable = {
    EDGE_NAME, round_rows, product_tiles, take_in, attend, norm_rows, pointwise, float_product, convolve, delta_gates,
    delta_heads,
};
