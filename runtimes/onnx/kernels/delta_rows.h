// The gated recurrences, one head at a time; included inside the namespace of each instruction set (see rows.h).
//
// A head's state is a matrix [key, value] in tiles of 32 values, which stay in the first cache. A row takes one sweep over
// a tile: what its parent adds is stored on the way to the row's own two dot products. No blocks of rows are multiplied
// together (chunked forms, WY): their sums would have other bits than a row alone.

constexpr size_t kTileValues = 32;
constexpr size_t kSweepVectors = kLanes == 4 ? 4 : 2;  // at once: sums and what is added stay in registers

// ln(1 + e^x): the logarithm of 1 + u, 0 < u <= 1, is 2 artanh(u / (2 + u)), whose series is cut off below 2e-8 of it.
static inline VF vsoftplus(VF x) {
  const VF u = vexp(vsub(vset(0.0f), vabs(x))), s = vdiv(u, vadd(vset(2.0f), u)), w = vmul(s, s);
  VF p = vset(1.0f / 13.0f);
  for (int odd = 11; odd > 0; odd -= 2) p = vfma(p, w, vset(1.0f / static_cast<float>(odd)));
  return vadd(vmax(x, vset(0.0f)), vmul(vadd(s, s), p));
}

// For rows first to last - 1 and all heads, by how much a state fades, and how much of a row's value it takes in.
static void delta_gates(const Recurrence& job, size_t first, size_t last) {
  for (size_t row = first; row < last; row++)
    for (size_t head = 0; head < job.heads; head += kLanes) {
      const size_t count = job.heads - head < kLanes ? job.heads - head : kLanes;
      float in[4][kLanes] = {};
      memcpy(in[0], job.steps[row] + head, count * sizeof(float));
      memcpy(in[1], job.step_bias + head, count * sizeof(float));
      memcpy(in[2], job.decay + head, count * sizeof(float));
      if (job.rates != nullptr) memcpy(in[3], job.rates[row] + head, count * sizeof(float));
      const VF step = vsoftplus(vadd(vload(in[0]), vload(in[1])));
      vstore(in[0], vexp(vmul(step, vload(in[2]))));
      vstore(in[1], job.rates == nullptr ? step : vsigmoid(vload(in[3])));
      memcpy(job.fades + row * job.heads + head, in[0], count * sizeof(float));
      memcpy(job.shares + row * job.heads + head, in[1], count * sizeof(float));
    }
}

// One row of `count` channels from `channel` on through the convolution and SiLU. WIDTH 0: of any width.
template <size_t WIDTH>
static void convolve_taps(const Recurrence& job, size_t row, size_t channel, size_t count, float* out) {
  const size_t width = WIDTH == 0 ? job.width : WIDTH;
  const float* from[WIDTH == 0 ? kMostTaps : WIDTH];
  for (size_t tap = 0; tap < width; tap++) from[tap] = job.taps[row * width + tap] + channel;
  const float *weight = job.weight + channel, *bias = job.bias == nullptr ? nullptr : job.bias + channel;
  for (size_t i = 0; i < count; i += kLanes) {
    VF sum = bias == nullptr ? vset(0.0f) : vload(bias + i);
    for (size_t tap = 0; tap < width; tap++) sum = vfma(vload(from[tap] + i), vload(weight + tap * job.channels + i), sum);
    vstore(out + i, vmul(sum, vsigmoid(sum)));
  }
}

static void convolve_head(const Recurrence& job, size_t row, size_t channel, size_t count, float* out) {
  job.width == 4 ? convolve_taps<4>(job, row, channel, count, out) : convolve_taps<0>(job, row, channel, count, out);
}

static float product_sum(const float* a, const float* b, size_t count) {
  VF sums[kGroups];
  for (size_t g = 0; g < kGroups; g++) sums[g] = vset(0.0f);
  for (size_t i = 0; i < count; i += kTile)
    for (size_t g = 0; g < kGroups; g++) sums[g] = vfma(vload(a + i + g * kLanes), vload(b + i + g * kLanes), sums[g]);
  return sum16(sums);
}

static void to_unit_length(float* x, size_t count, float scale) {
  const float inverse = 1.0f / sqrtf(product_sum(x, x, count) + 1e-6f) * scale;
  for (size_t i = 0; i < count; i += kLanes) vstore(x + i, vmul(vload(x + i), vset(inverse)));
}

// What a row adds to a state: state = fade * state + key * added.
struct Step {
  const float *key, *added;
  float fade;
};

// Reads VECTORS of a tile, whose rows have STRIDE values, with what `step` adds, stores that at `out`, and sums it times a
// key (DOTS & 1) and a query (DOTS & 2).
template <size_t VECTORS, size_t STRIDE, bool STEP, int DOTS>
EDGE_INLINE void sweep(const float* in, float* out, size_t size, const Step& step, const float* key, const float* query,
                       float* by_key, float* by_query) {
  VF keys[VECTORS], queries[VECTORS], added[VECTORS];
  for (size_t v = 0; v < VECTORS; v++) {
    keys[v] = queries[v] = vset(0.0f);
    added[v] = STEP ? vload(step.added + v * kLanes) : keys[v];
  }
  const VF fade = vset(STEP ? step.fade : 0.0f);
  for (size_t i = 0; i < size; i++)
    for (size_t v = 0; v < VECTORS; v++) {
      VF value = vload(in + i * STRIDE + v * kLanes);
      if (STEP) {
        value = vfma(vset(step.key[i]), added[v], vmul(fade, value));
        vstore(out + i * STRIDE + v * kLanes, value);
      }
      if (DOTS & 1) keys[v] = vfma(value, vset(key[i]), keys[v]);
      if (DOTS & 2) queries[v] = vfma(value, vset(query[i]), queries[v]);
    }
  for (size_t v = 0; v < VECTORS; v++) {
    if (DOTS & 1) vstore(by_key + v * kLanes, keys[v]);
    if (DOTS & 2) vstore(by_query + v * kLanes, queries[v]);
  }
}

// The rows of one head that are in work: from `first` on, `count` of them.
struct HeadRows {
  float *queries, *keys;  // [count, key_size]
  float* values;          // [count, value_size]; then what each adds
  float* products;        // [count]: query times key
  size_t head, first, count;
};

// All rows in work through the values of the head's state from `value` on, which lie at `state`.
template <size_t VECTORS, size_t STRIDE>
static void tile_rows(const Recurrence& job, const HeadRows& rows, size_t value, float* state, float* branch) {
  constexpr size_t kWidth = VECTORS * kLanes;
  constexpr int kNone = -1;
  const size_t size = job.key_size;
  const int applied = static_cast<int>(job.applied), first = static_cast<int>(rows.first);
  int late = kNone, held = kNone;  // the row whose step `state` lacks; the row after which `branch` is
  int path[kMostKept];
  const auto step_of = [&](int row) {
    const size_t at = row - first;
    return Step{rows.keys + at * size, rows.values + at * job.value_size + value, job.fades[row * job.heads + rows.head]};
  };
  const Step none{};
  for (size_t at = 0; at < rows.count; at++) {
    const int row = first + static_cast<int>(at);
    const bool seen = row >= static_cast<int>(job.own);
    const float *key = rows.keys + at * size, *query = rows.queries + at * size;
    float by_key[kWidth], by_query[kWidth];
    const auto read = [&](const float* in, float* out, int after) {  // with the dot products that the row needs
      const Step step = after == kNone ? none : step_of(after);
      if (job.rates == nullptr) {
        if (seen)
          after == kNone ? sweep<VECTORS, STRIDE, false, 2>(in, out, size, step, key, query, by_key, by_query)
                         : sweep<VECTORS, STRIDE, true, 2>(in, out, size, step, key, query, by_key, by_query);
        else if (after != kNone)
          sweep<VECTORS, STRIDE, true, 0>(in, out, size, step, key, query, by_key, by_query);
      } else if (seen) {
        after == kNone ? sweep<VECTORS, STRIDE, false, 3>(in, out, size, step, key, query, by_key, by_query)
                       : sweep<VECTORS, STRIDE, true, 3>(in, out, size, step, key, query, by_key, by_query);
      } else {
        after == kNone ? sweep<VECTORS, STRIDE, false, 1>(in, out, size, step, key, query, by_key, by_query)
                       : sweep<VECTORS, STRIDE, true, 1>(in, out, size, step, key, query, by_key, by_query);
      }
    };
    if (row < applied || job.parents[row] < applied) {
      read(state, state, late);
      late = row < applied ? row : kNone;
    } else {  // its ancestors behind those that `branch` or `state` has
      size_t steps = 0;
      int from = job.parents[row];
      for (; from >= applied && from != held; from = job.parents[from]) path[steps++] = from;
      const float* in = from >= applied ? branch : state;
      for (; steps > 1; in = branch)
        sweep<VECTORS, STRIDE, true, 0>(in, branch, size, step_of(path[--steps]), key, query, by_key, by_query);
      read(in, branch, steps == 0 ? kNone : path[0]);
      held = job.parents[row];
    }
    float* added = rows.values + at * job.value_size + value;
    const VF fade = vset(job.fades[row * job.heads + rows.head]), share = vset(job.shares[row * job.heads + rows.head]);
    for (size_t v = 0; v < kWidth; v += kLanes) {
      const VF x = vload(added + v);
      const VF adds = vmul(share, job.rates == nullptr ? x : vsub(x, vmul(fade, vload(by_key + v))));
      vstore(added + v, adds);
      if (!seen) continue;
      VF y = vfma(vset(rows.products[at]), adds, vmul(fade, vload(by_query + v)));
      if (job.skip != nullptr) y = vfma(vset(job.skip[rows.head]), x, y);
      vstore(job.y + ((row - job.own) * job.heads + rows.head) * job.value_size + value + v, y);
    }
  }
  if (late != kNone)
    sweep<VECTORS, STRIDE, true, 0>(state, state, size, step_of(late), nullptr, nullptr, nullptr, nullptr);
}

// y = norm(y) * silu(z), or y * silu(z), for one head of a row.
static void gate_head(const Recurrence& job, float* y, const float* z) {
  const size_t size = job.value_size;
  float inverse = 1.0f;
  if (job.norm != nullptr) inverse = 1.0f / sqrtf(product_sum(y, y, size) / static_cast<float>(size) + job.epsilon);
  for (size_t i = 0; i < size; i += kLanes) {
    const VF gate = vload(z + i);
    VF value = vload(y + i);
    if (job.norm != nullptr) value = vmul(vmul(value, vset(inverse)), vload(job.norm + i));
    vstore(y + i, vmul(value, vmul(gate, vsigmoid(gate))));
  }
}

// All rows of heads first to last - 1. scratch: delta_floats(job).
static void delta_heads(const Recurrence& job, size_t first, size_t last, float* scratch) {
  constexpr size_t kHalf = kSweepVectors * kLanes < kTile ? kSweepVectors : kTile / kLanes;
  const size_t keys = job.key_size, values = job.value_size, most = delta_rows(job);
  HeadRows rows{scratch, scratch + most * keys, scratch + 2 * most * keys, scratch + most * (2 * keys + values), 0, 0, 0};
  float* branch = rows.products + (most + kTile - 1) / kTile * kTile;
  for (rows.head = first; rows.head < last; rows.head++) {
    const size_t group = job.interleaved ? rows.head % job.key_heads : rows.head / (job.heads / job.key_heads);
    for (rows.first = 0; rows.first < job.rows; rows.first += rows.count) {
      const size_t left = job.applied > rows.first ? job.applied - rows.first : 0;
      rows.count = left > kMostKept ? kMostKept : job.rows - rows.first;
      for (size_t at = 0; at < rows.count; at++) {
        const size_t row = rows.first + at;
        float *key = rows.keys + at * keys, *query = rows.queries + at * keys;
        convolve_head(job, row, job.key_at + group * keys, keys, key);
        convolve_head(job, row, job.value_at + rows.head * values, values, rows.values + at * values);
        if (job.rates != nullptr) to_unit_length(key, keys, 1.0f);
        if (row < job.own) continue;
        convolve_head(job, row, job.query_at + group * keys, keys, query);
        if (job.rates != nullptr) to_unit_length(query, keys, job.scale);
        rows.products[at] = product_sum(query, key, keys);
      }
      float* state = job.state + rows.head * keys * values;
      for (size_t value = 0; value < values; value += kTileValues) {
        float* tile = state + value * keys;
        if (values - value < kTileValues) {
          for (size_t i = 0; i < kTile; i += kHalf * kLanes) tile_rows<kHalf, kTile>(job, rows, value + i, tile + i, branch);
        } else {
          for (size_t i = 0; i < kTileValues; i += kSweepVectors * kLanes)
            tile_rows<kSweepVectors, kTileValues>(job, rows, value + i, tile + i, branch);
        }
      }
      for (size_t row = rows.first > job.own ? rows.first : job.own; row < rows.first + rows.count; row++) {
        const size_t at = (row - job.own) * job.heads + rows.head;
        gate_head(job, job.y + at * values, job.z + at * values);
      }
    }
  }
}
