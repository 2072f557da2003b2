// The kernels, written once over the vectors of an instruction set; included inside its namespace (see vectors.h).

// ---- Rounding of activations -------------------------------------------------------------------------------------

// Rounds rows first to last - 1. A sub-block's scale is its largest magnitude over 127 (over 127 * 256 with two
// planes). A value that is infinite or not a number makes the scale NaN, so that the products are NaN, never wrong.
template <int PLANES>
static void round_planes(const float* x, size_t columns, size_t first, size_t last, int zero_point, const Rounded& out) {
  constexpr size_t kVectors = kSubBlock / kLanes;
  constexpr float kLargest = PLANES == 1 ? 127.0f : 127.0f * 256.0f;
  for (size_t row = first; row < last; row++) {
    int8_t* values = out.values + row * PLANES * out.sub_blocks * kSubBlock;
    for (size_t block = 0; block < out.sub_blocks; block++) {
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
      VI sum = vint(vset(0.0f));
      for (size_t i = 0; i < kVectors; i++) {
        VI v = vint(vmul(vload(p + i * kLanes), vset(inverse)));
        sum = vadd_int(sum, v);
        int8_t* to = values + block * kSubBlock + i * kLanes;
        if (PLANES == 1) {
          vstore_bytes(to, v);
        } else {
          VI high = vhigh(v);
          vstore_bytes(to, high);
          vstore_bytes(to + out.sub_blocks * kSubBlock, vlow(v, high));
        }
      }
      out.scales[row * out.sub_blocks + block] = (tiny ? 0.0f : most / kLargest) + bad;
      out.starts[row * out.sub_blocks + block] = -zero_point * vsum_int(sum);
    }
  }
}

static void round_rows(const float* x, size_t columns, size_t first, size_t last, int zero_point, const Rounded& out) {
  if (out.planes == 1)
    round_planes<1>(x, columns, first, last, zero_point, out);
  else
    round_planes<2>(x, columns, first, last, zero_point, out);
}

// ---- Products with quantized weights -----------------------------------------------------------------------------

// One tile of 16 columns times ROWS rows from `row`: integer dot products over each sub-block, exact, then one fma
// a sub-block in the order of K. The nibbles are unpacked once for all rows.
template <int BITS, int ROWS, int PLANES>
static inline void tile_rows(const Product& job, const uint8_t* tile, size_t row, float (*out)[kTile]) {
  constexpr size_t kBytes = kSubBlock * kTile * BITS / 8;
  const size_t blocks = job.sub_blocks, stride = PLANES * blocks * kSubBlock;
  const int8_t* a = job.x.values + row * stride;
  const float* a_scales = job.x.scales + row * blocks;
  const int32_t* starts = job.x.starts + row * blocks;
  const uint8_t* scales = tile + blocks * kBytes;
  for (size_t group = 0; group < kGroups; group++) {
    VF sums[ROWS];
    for (int m = 0; m < ROWS; m++) sums[m] = vset(0.0f);
    const uint8_t* quants = tile + group * 4 * kLanes;
    for (size_t block = 0; block < blocks; block++, quants += kBytes) {
      VW w[8];
      if (BITS == 4) {
        for (int i = 0; i < 4; i++) vnibbles(quants + 64 * i, w[2 * i], w[2 * i + 1]);
      } else {
        for (int i = 0; i < 8; i++) w[i] = vweights(quants + 64 * i);
      }
#if defined(__GNUC__)
      if (group == 0)
        for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(quants + 2048 + line);
#endif
      const size_t place = block / job.scale_every * kTile + group * kLanes;
      VF scale = job.wide_scales ? vload(reinterpret_cast<const float*>(scales) + place)
                                 : vhalf(reinterpret_cast<const uint16_t*>(scales) + place);
      for (int m = 0; m < ROWS; m++) {
        const int8_t* am = a + m * stride + block * kSubBlock;
        Dot<BITS> low(starts[m * blocks + block]);
        for (int step = 0; step < 8; step++) {
          int32_t four;
          memcpy(&four, am + 4 * step + (PLANES - 1) * blocks * kSubBlock, 4);
          low.step(w[step], four);
        }
        VI sum = low.end();
        if (PLANES == 2) {
          Dot<BITS> high(0);
          for (int step = 0; step < 8; step++) {
            int32_t four;
            memcpy(&four, am + 4 * step, 4);
            high.step(w[step], four);
          }
          sum = vjoin(high.end(), sum);
        }
        sums[m] = vfma(vfloat(sum), vmul(scale, vset(a_scales[m * blocks + block])), sums[m]);
      }
    }
    for (int m = 0; m < ROWS; m++) vstore(out[m] + group * kLanes, sums[m]);
  }
}

constexpr int kRowsAtOnce = 8;

template <int BITS, int PLANES>
static inline void tile_any(const Product& job, const uint8_t* tile, size_t row, int rows, float (*out)[kTile]) {
  switch (rows) {
    case 1: return tile_rows<BITS, 1, PLANES>(job, tile, row, out);
    case 2: return tile_rows<BITS, 2, PLANES>(job, tile, row, out);
    case 3: return tile_rows<BITS, 3, PLANES>(job, tile, row, out);
    case 4: return tile_rows<BITS, 4, PLANES>(job, tile, row, out);
    case 5: return tile_rows<BITS, 5, PLANES>(job, tile, row, out);
    case 6: return tile_rows<BITS, 6, PLANES>(job, tile, row, out);
    case 7: return tile_rows<BITS, 7, PLANES>(job, tile, row, out);
    default: return tile_rows<BITS, 8, PLANES>(job, tile, row, out);
  }
}

static inline VF gated(Gate gate, VF x) {
  return gate == Gate::kSilu ? vmul(x, vsigmoid(x)) : vgelu_tanh(x);
}

template <int BITS, int PLANES>
static void tiles_of(const Product& job, size_t first, size_t last) {
  const size_t nbytes = tile_nbytes(job.sub_blocks, BITS, job.scale_every, job.wide_scales);
  for (size_t tile = first; tile < last; tile++) {
    const size_t column = tile * kTile;
    const size_t valid = job.columns - column < kTile ? job.columns - column : kTile;
    float bias[kTile] = {};
    if (job.bias != nullptr) memcpy(bias, job.bias + column, valid * sizeof(float));
    for (size_t row = 0; row < job.rows; row += kRowsAtOnce) {
      const int rows = job.rows - row < kRowsAtOnce ? static_cast<int>(job.rows - row) : kRowsAtOnce;
      float out[kRowsAtOnce][kTile], up[kRowsAtOnce][kTile];
      tile_any<BITS, PLANES>(job, job.weights + tile * nbytes, row, rows, out);
      if (job.up != nullptr) tile_any<BITS, PLANES>(job, job.up + tile * nbytes, row, rows, up);
      for (int m = 0; m < rows; m++) {
        for (size_t g = 0; g < kTile; g += kLanes) {
          VF y = vload(out[m] + g);
          if (job.bias != nullptr) y = vadd(y, vload(bias + g));
          if (job.up != nullptr) y = vmul(gated(job.gate, y), vload(up[m] + g));
          vstore(out[m] + g, y);
        }
        memcpy(job.y + (row + m) * job.columns + column, out[m], valid * sizeof(float));
      }
    }
  }
}

static void product_tiles(const Product& job, size_t first, size_t last) {
#if defined(EDGE_AVX2)
  if (job.bits == 8 && job.full_range) return kernels_generic()->product_tiles(job, first, last);
#endif
  if (job.bits == 4)
    return job.x.planes == 1 ? tiles_of<4, 1>(job, first, last) : tiles_of<4, 2>(job, first, last);
  return job.x.planes == 1 ? tiles_of<8, 1>(job, first, last) : tiles_of<8, 2>(job, first, last);
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
    const size_t slot = job.settled + job.pending - job.rows + row;
    const int64_t position = in.cosines == nullptr ? 0 : in.positions[row];
    for (size_t head = 0; head < job.heads; head++) {
      float* to = in.queries + (row * job.heads + head) * size;
      const float* key_scales = job.int8_cache ? in.key_scales + head / (job.heads / job.kv_heads) * size : nullptr;
      rotate(in, position, in.q + row * in.q_stride + head * size, to, size);
      for (size_t d = 0; d < size; d++) {
        to[d] *= in.scale;
        if (key_scales != nullptr) to[d] *= key_scales[d];  // an int8 key times its scale, moved to the query
      }
    }
    for (size_t head = 0; head < job.kv_heads; head++) {
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

// Scores of QUERIES queries with the 16 slots of one tile: a lane is a slot, summed over the size in one order, so a
// score does not depend on the slot it is in.
template <class T, int QUERIES>
static inline void tile_scores(const T* tile, size_t size, const float* const* queries, float* scores, size_t stride) {
  for (size_t group = 0; group < kTile; group += kLanes) {
    VF sums[QUERIES];
    for (int q = 0; q < QUERIES; q++) sums[q] = vset(0.0f);
    for (size_t d = 0; d < size; d++) {
      VF key = vcached<T>(tile + d * kTile + group);
      for (int q = 0; q < QUERIES; q++) sums[q] = vfma(vset(queries[q][d]), key, sums[q]);
    }
    for (int q = 0; q < QUERIES; q++) vstore(scores + q * stride + group, sums[q]);
  }
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
template <class T, int QUERIES, int VECTORS>
static inline void add_values(const T* values, size_t size, size_t first, size_t last, const float* weights,
                              size_t stride, float* sums) {
  VF acc[QUERIES][VECTORS];
  for (int q = 0; q < QUERIES; q++)
    for (int i = 0; i < VECTORS; i++) acc[q][i] = vload(sums + q * size + i * kLanes);
  for (size_t slot = first; slot < last; slot++) {
    VF v[VECTORS];
    for (int i = 0; i < VECTORS; i++) v[i] = vcached<T>(values + slot * size + i * kLanes);
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
                                  size_t stride, float* sums) {
  size_t d = 0;
  for (; d + kValueVectors * kLanes <= size; d += kValueVectors * kLanes)
    add_values<T, QUERIES, kValueVectors>(values + d, size, first, last, weights, stride, sums + d);
  for (; d < size; d += kLanes) add_values<T, QUERIES, 1>(values + d, size, first, last, weights, stride, sums + d);
}

// One query vector: the positions it sees are low to length - 1; in a tree those from `settled` on are in the slots
// settled + path[i].
struct Seen {
  size_t low, length;
  const int32_t* path;
  const float* query;
  float* y;
};

// Writes the pending rows from the root down to `row`; returns how many.
static inline size_t path_to(const int32_t* parents, size_t row, int32_t* path) {
  size_t depth = 0;
  for (int32_t node = static_cast<int32_t>(row); node >= 0; node = parents[node]) depth++;
  size_t i = depth;
  for (int32_t node = static_cast<int32_t>(row); node >= 0; node = parents[node]) path[--i] = node;
  return depth;
}

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
                         float* scores) {
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
  for (size_t slot = low / kTile * kTile; slot < last_slot; slot += kTile) {
    const T* tile = keys + slot * size;
    size_t q = 0;
    for (; q + 8 <= count; q += 8) tile_scores<T, 8>(tile, size, queries + q, scores + q * stride + slot, stride);
    for (; q + 4 <= count; q += 4) tile_scores<T, 4>(tile, size, queries + q, scores + q * stride + slot, stride);
    for (; q + 2 <= count; q += 2) tile_scores<T, 2>(tile, size, queries + q, scores + q * stride + slot, stride);
    for (; q < count; q++) tile_scores<T, 1>(tile, size, queries + q, scores + q * stride + slot, stride);
    spread_poison(tile, count, scores + slot, stride);
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
      for (size_t p = job.settled > seen[q].low ? job.settled : seen[q].low; p < seen[q].length; p++) {
        const size_t slot = job.settled + seen[q].path[p - job.settled];  // the weight is at its position
        add_all_values<T, 1>(values + slot * size, size, 0, 1, own + p, stride, sum);
      }
    }
    for (size_t d = 0; d < size; d += kLanes) {
      VF y = vmul(vload(sum + d), vset(inverses[q]));
      if (job.int8_cache) y = vmul(y, vload(job.value_scales + kv_head * size + d));
      vstore(seen[q].y + d, y);
    }
  }
}

// Attends with queries first to last - 1 of one key/value head: query i is row i / group, head i % group of its group.
static void attend(const Attention& job, size_t kv_head, size_t first, size_t last, float* scores) {
  const size_t group = job.heads / job.kv_heads, total = job.settled + job.pending;
  int32_t* paths = reinterpret_cast<int32_t*>(scores + kQueries * (score_stride(job) + job.size));
  for (size_t start = first; start < last; start += kQueries) {
    const size_t count = last - start < kQueries ? last - start : kQueries;
    Seen seen[kQueries];
    size_t common = job.settled;
    for (size_t q = 0; q < count; q++) {
      const size_t row = (start + q) / group, head = kv_head * group + (start + q) % group;
      seen[q].path = nullptr;
      seen[q].query = job.queries + (row * job.heads + head) * job.size;
      seen[q].y = job.y + (row * job.heads + head) * job.size;
      seen[q].length = total - job.rows + row + 1;
      if (job.parents != nullptr) {
        int32_t* path = paths + q * job.pending;
        seen[q].length = job.settled + path_to(job.parents, job.pending - job.rows + row, path);
        seen[q].path = path;
      } else if (q == 0) {
        common = seen[q].length;  // in a chain every row sees what the first one sees
      }
      seen[q].low = job.window != 0 && seen[q].length > job.window ? seen[q].length - job.window : 0;
    }
    if (job.int8_cache)
      attend_block<int8_t>(job, kv_head, seen, count, common, scores);
    else
      attend_block<float>(job, kv_head, seen, count, common, scores);
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

// y[rows, columns] = x[rows, inner] · w[inner, columns] in float32, columns first to last - 1: an fma a step of `inner`.
static void float_product(const float* x, const float* w, float* y, size_t rows, size_t inner, size_t columns,
                          size_t first, size_t last) {
  for (size_t row = 0; row < rows; row++) {
    size_t column = first;
    for (; column + kTile <= last; column += kTile) {
      VF sums[kGroups];
      for (size_t g = 0; g < kGroups; g++) sums[g] = vset(0.0f);
      for (size_t k = 0; k < inner; k++) {
        VF a = vset(x[row * inner + k]);
        for (size_t g = 0; g < kGroups; g++)
          sums[g] = vfma(a, vload(w + k * columns + column + g * kLanes), sums[g]);
      }
      for (size_t g = 0; g < kGroups; g++) vstore(y + row * columns + column + g * kLanes, sums[g]);
    }
    for (; column < last; column++) {
      float sum = 0.0f;
      for (size_t k = 0; k < inner; k++) sum = fused(x[row * inner + k], w[k * columns + column], sum);
      y[row * columns + column] = sum;
    }
  }
}

static const Kernels kTable = {
    EDGE_NAME,    Dot<4>::kZeroPoint, Dot<8>::kZeroPoint, round_rows, product_tiles,
    take_in,      attend,             norm_rows,          pointwise,  float_product,
};
