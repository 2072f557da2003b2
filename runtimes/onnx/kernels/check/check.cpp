// Runs every kernel of every instruction set that this processor supports on random shapes, without Python or an engine,
// for sanitizers and emulators. Prints a digest of all results for each set. The sets must agree, a row's result must not
// depend on other rows, and results must be close to a float64 reference; otherwise the exit code is 1. The draws of
// draw.cpp have a separate digest.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "../kernels.h"

extern "C" {
int edgedecode_draw_force(const char* name);
int64_t edgedecode_draw_scratch(int64_t size);
int64_t edgedecode_argmax_row(const float* row, int64_t size);
int64_t edgedecode_top_row(const float* row, int64_t size, int64_t count, int64_t* found);
int64_t edgedecode_leading_row(const float* row, int64_t size, double* found);
int64_t edgedecode_draw_row(const float* row, const int64_t* ids, int64_t size, float scale, int64_t top_k, double top_p,
                            float min_p, float penalty, const int64_t* seen, int64_t seen_count, uint64_t key,
                            float* scratch);
}

using namespace edgedecode;

namespace {

uint64_t state;
uint32_t next() {  // splitmix64
  state += 0x9E3779B97F4A7C15u;
  uint64_t x = state;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 32);
}
size_t below(size_t limit) { return next() % limit; }
float uniform() { return static_cast<float>(next() >> 8) / (1 << 23) - 1.0f; }

int failures = 0;
void expect(bool good, const char* what) {
  if (!good && failures++ < 20) std::printf("FAILED: %s\n", what);
}

struct Digest {
  uint64_t value = 1469598103934665603u;  // FNV-1a
  void add(const void* data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) value = (value ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  }
};

std::vector<float> random_floats(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = uniform();
  return values;
}

void check_product(const Kernels* table, Digest& digest) {
  const int planes = 1 + static_cast<int>(below(2));
  const bool floats = below(4) == 0, bfloat16 = below(2);
  Form form{below(2) ? 16 : 32, 1, false, false, 0, bfloat16, 0};
  constexpr int kBits[] = {4, 4, 5, 6, 8};
  while (!floats) {
    form = {kBits[below(5)], 1 << below(4), below(2) != 0, below(2) != 0, static_cast<int>(below(3)), false,
            static_cast<int>(below(3))};
    if (form.served(planes)) break;
  }
  const size_t rows = 1 + below(18), columns = below(2) ? 1 + below(70) : 32 * (1 + below(4)), inner = 1 + below(200);
  const bool gate = below(2);
  const size_t blocks = form.sub_blocks(inner), tiles = (columns + 31) / 32, nbytes = form.tile_nbytes(blocks);
  const size_t quants = form.scale_every * (form.sub_nbytes() + form.level_nbytes());  // and levels
  std::vector<uint8_t> weights(2 * tiles * nbytes);
  for (size_t i = 0; i < weights.size(); i++) {
    const size_t inside = i % form.block_nbytes();
    if (floats) {  // the last byte has the sign and the exponent, of numbers below 1
      const bool last = inside % (form.bits / 8) == form.bits / 8u - 1;
      weights[i] = last ? below(2) << 7 | below(form.bits == 16 && !bfloat16 ? 0x3c : 0x3f) : below(256);
    } else if (inside < quants)
      weights[i] = below(256);
    else if (form.wide_scales && inside % 4 == 0) {
      const float scale = 0.01f * (1 + uniform() * 0.5f);
      memcpy(&weights[i], &scale, 4);
      i += 3;
    } else if (!form.wide_scales && inside % 2 == 0) {
      const uint16_t scale = 0x2000 + below(1024);  // half-precision numbers from 2^-7 on
      memcpy(&weights[i], &scale, 2);
      i += 1;
    }
  }
  const std::vector<float> x = random_floats(rows * inner), bias = random_floats(columns);
  const bool adapted = columns % 32 == 0;
  const size_t rank = adapted ? below(9) : 0, second = adapted ? 32 * (1 + below(columns / 32)) : columns;
  const size_t third = second + 32 * below((columns - second) / 32 + 1);
  const size_t held = 1 + (second < columns) + (third < columns);
  const bool half = below(2);
  const std::vector<float> narrow = random_floats((held + 1) * rows * rank), deltas = random_floats(2 * rank * columns);
  std::vector<uint16_t> halves(deltas.size());
  for (uint16_t& each : halves) each = static_cast<uint16_t>(below(0x3c00) | below(2) << 15);
  const auto matrix = [&](size_t i) -> const void* {
    return half ? static_cast<const void*>(halves.data() + i * rank * columns) : deltas.data() + i * rank * columns;
  };
  const auto multiply = [&](size_t first, size_t count, float* y) {
    std::vector<int8_t> values(count * blocks * 64);
    std::vector<float> scales(count * blocks);
    std::vector<int32_t> sums(count * blocks * form.parts());
    Product job{};
    job.weights = weights.data();
    job.up = gate ? weights.data() + tiles * nbytes : nullptr;
    job.floats = x.data() + first * inner;
    job.inner = inner;
    job.bias = bias.data();
    job.x = {values.data(), scales.data(), sums.data(), count, blocks, planes, form.bits, form.parts()};
    job.y = y;
    job.rows = count;
    job.columns = columns;
    job.sub_blocks = blocks;
    job.form = form;
    job.gate = gate ? (planes == 1 ? Gate::kSilu : Gate::kGeluTanh) : Gate::kNone;
    job.delta = {narrow.data() + first * held * rank, matrix(0), half, rank, held, second, third};
    job.up_delta = {narrow.data() + (held * rows + first) * rank, matrix(1), half, gate ? rank : 0, 1, columns, columns};
    if (!floats) table->round_rows(job.floats, inner, 0, count, job.x);
    table->product_tiles(job, 0, tiles);
  };
  std::vector<float> together(rows * columns), alone(columns);
  multiply(0, rows, together.data());
  for (size_t row = 0; row < rows; row++) {
    multiply(row, 1, alone.data());
    expect(!memcmp(alone.data(), &together[row * columns], columns * sizeof(float)), "a row's product depends on others");
  }
  for (float value : together) expect(std::isfinite(value), "a product is not finite");
  digest.add(together.data(), together.size() * sizeof(float));
  std::vector<float> column(inner);
  unpack_column({weights.data(), blocks, form}, below(columns), inner, column.data());
  digest.add(column.data(), column.size() * sizeof(float));
}

// Whether two results agree bit for bit, or both are NaN.
bool same(const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (memcmp(a + i, b + i, sizeof(float)) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

// The same sequence as one chain, row by row, and as a tree whose slots are in another order. With `poisoned`, one key or
// value is not finite: exactly the rows that attend to it must have results that are not finite.
void check_attention(const Kernels* table, Digest& digest, bool int8_cache, bool poisoned) {
  const size_t kv_heads = 1 + below(2), group = 1 + below(3), heads = kv_heads * group, size = 16 * (1 + below(5));
  const size_t settled = below(70), rows = 1 + below(9), capacity = 208, window = below(2) ? 0 : 1 + below(40);
  const size_t stride = (heads + 2 * kv_heads) * size, rotary = size - below(2) * 8;
  std::vector<float> input = random_floats((settled + 2 * rows) * stride);
  const size_t bad_row = below(settled + rows), bad_head = below(kv_heads), in_value = below(2);
  if (poisoned) {
    const float bad = below(2) && (int8_cache || in_value) ? (below(2) ? INFINITY : -INFINITY) : NAN;
    input[bad_row * stride + (heads + bad_head + in_value * kv_heads) * size + below(size)] = bad;
  }
  const std::vector<float> cosines = random_floats(capacity * rotary / 2), sines = random_floats(capacity * rotary / 2);
  std::vector<float> key_scales(kv_heads * size, 0.02f), value_scales(kv_heads * size, 0.01f);
  const float soft_cap = below(2) ? 0.0f : 5.0f;
  struct Cache { std::vector<uint8_t> keys, values; };
  const size_t cache_nbytes = kv_heads * capacity * size * (int8_cache ? 1 : 4);
  const auto pass = [&](Cache& cache, size_t before, const std::vector<size_t>& from, const std::vector<int32_t>* parents,
                        const std::vector<int64_t>& positions) {
    std::vector<float> rows_in, queries(from.size() * heads * size), y(from.size() * heads * size);
    for (size_t source : from) rows_in.insert(rows_in.end(), &input[source * stride], &input[source * stride] + stride);
    Attention job{};
    job.queries = queries.data();
    job.keys = cache.keys.data();
    job.values = cache.values.data();
    job.value_scales = value_scales.data();
    job.parents = parents == nullptr ? nullptr : parents->data();
    job.y = y.data();
    job.rows = job.appended = from.size();
    job.heads = heads;
    job.kv_heads = kv_heads;
    job.size = size;
    job.capacity = capacity;
    job.settled = before;
    job.pending = parents == nullptr ? job.rows : parents->size();
    job.window = window;
    job.soft_cap = soft_cap;
    job.int8_cache = int8_cache;
    Intake in{};
    in.q = rows_in.data();
    in.k = in.q + heads * size;
    in.v = in.k + kv_heads * size;
    in.q_stride = in.k_stride = in.v_stride = stride;
    in.cosines = cosines.data();
    in.sines = sines.data();
    in.positions = positions.data();
    in.rotary = rotary;
    in.scale = 0.2f;
    in.key_scales = key_scales.data();
    in.value_scales = value_scales.data();
    in.queries = queries.data();
    table->take_in(in, job, 0, job.rows);
    std::vector<float> scores(score_floats(job));
    const size_t cut = below(job.rows * group);
    for (size_t head = 0; head < kv_heads; head++) {
      table->attend(job, head, 0, cut, scores.data());
      table->attend(job, head, cut, job.rows * group, scores.data());
    }
    return y;
  };
  const auto fresh = [&] { return Cache{std::vector<uint8_t>(cache_nbytes), std::vector<uint8_t>(cache_nbytes)}; };
  const auto places = [&](size_t first, size_t count) {
    std::vector<size_t> from;
    for (size_t i = 0; i < count; i++) from.push_back(first + i);
    return from;
  };
  const auto counted = [&](size_t first, size_t count) {
    std::vector<int64_t> positions;
    for (size_t i = 0; i < count; i++) positions.push_back(first + i);
    return positions;
  };
  Cache wide = fresh(), narrow = fresh(), tree = fresh();
  if (settled != 0)
    for (Cache* cache : {&wide, &narrow, &tree}) pass(*cache, 0, places(0, settled), nullptr, counted(0, settled));
  const std::vector<float> together = pass(wide, settled, places(settled, rows), nullptr, counted(settled, rows));
  for (size_t row = 0; row < rows; row++) {
    const std::vector<float> alone = pass(narrow, settled + row, places(settled + row, 1), nullptr, counted(settled + row, 1));
    expect(same(alone.data(), &together[row * heads * size], alone.size()), "attention depends on the pass");
  }
  // Branches that grow row by row, one of which is the chain; others end, or begin anew at any row.
  const size_t count = 1 + below(14), chain = below(count);
  std::vector<int32_t> tips(count, -1), parents;
  std::vector<size_t> depths;
  for (size_t row = 0; row < rows; row++) {
    std::vector<size_t> from;
    std::vector<int64_t> positions;
    size_t own = 0;
    for (size_t branch = 0; branch < count; branch++) {
      int32_t& tip = tips[branch];
      if (branch == chain)
        own = from.size();
      else if (below(8) == 0)
        continue;
      else if (below(8) == 0)
        tip = static_cast<int32_t>(below(parents.size() + 1)) - 1;
      depths.push_back(tip < 0 ? 0 : depths[tip] + 1);
      from.push_back(branch == chain ? settled + row : settled + below(2 * rows));
      positions.push_back(settled + depths.back());
      parents.push_back(tip);
      tip = static_cast<int32_t>(parents.size()) - 1;
    }
    const std::vector<float> branched = pass(tree, settled, from, &parents, positions);
    expect(same(&branched[own * heads * size], &together[row * heads * size], heads * size),
           "a tree's row differs from the chain's");
  }
  for (size_t row = 0; row < rows; row++)
    for (size_t head = 0; head < heads; head++) {
      const size_t here = settled + row, first = window != 0 && here + 1 > window ? here + 1 - window : 0;
      const float* y = &together[(row * heads + head) * size];
      size_t finite = 0;
      for (size_t d = 0; d < size; d++) finite += std::isfinite(y[d]);
      if (poisoned && head / group == bad_head && bad_row >= first && bad_row <= here)
        expect(finite < size && !(int8_cache && finite != 0), "a value that is not finite has no effect");
      else
        expect(finite == size, "attention is not finite");
    }
  if (!poisoned) digest.add(together.data(), together.size() * sizeof(float));
}

void check_others(const Kernels* table, Digest& digest) {
  const size_t rows = 1 + below(4), columns = 1 + below(100);
  const std::vector<float> x = random_floats(rows * columns), skip = random_floats(rows * columns), w = random_floats(columns);
  std::vector<float> y(rows * columns), sum(rows * columns);
  Norm norm{x.data(), skip.data(), w.data(), y.data(), sum.data(), rows, columns, 1e-5f};
  table->norm_rows(norm, 0, rows);
  for (size_t row = 0; row < rows; row++) {
    double squares = 0;
    for (size_t i = 0; i < columns; i++) squares += std::pow(double(x[row * columns + i]) + skip[row * columns + i], 2);
    for (size_t i = 0; i < columns; i++) {
      const size_t at = row * columns + i;
      const double wanted = (double(x[at]) + skip[at]) / std::sqrt(squares / columns + 1e-5) * w[i];
      expect(std::fabs(y[at] - wanted) < 1e-4 * (1 + std::fabs(wanted)), "a norm is wrong");
    }
  }
  digest.add(y.data(), y.size() * sizeof(float));
  for (int kind = 0; kind < 4; kind++) {
    for (size_t i = 0; i < y.size(); i++) sum[i] = 20 * x[i];
    table->pointwise(static_cast<Pointwise>(kind), sum.data(), y.data(), y.size());
    for (size_t i = 0; i < y.size(); i++) {
      const double v = sum[i], sigmoid = 1 / (1 + std::exp(-v));
      const double gelu = 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
      const double wanted = kind == 0 ? sigmoid : kind == 1 ? v * sigmoid : kind == 2 ? gelu : std::tanh(v);
      expect(std::fabs(y[i] - wanted) < 1e-5 * (1 + std::fabs(v)), "an activation is wrong");
    }
    digest.add(y.data(), y.size() * sizeof(float));
  }
  const size_t inner = below(30), wide = 1 + below(50);
  const std::vector<float> a = random_floats(rows * inner), b = random_floats(inner * wide);
  std::vector<float> product(rows * wide);
  table->float_product({a.data(), b.data(), false, product.data(), rows, inner, wide, inner}, 0, wide);
  for (size_t row = 0; row < rows; row++)
    for (size_t j = 0; j < wide; j++) {
      double wanted = 0;
      for (size_t k = 0; k < inner; k++) wanted += double(a[row * inner + k]) * b[k * wide + j];
      expect(std::fabs(product[row * wide + j] - wanted) < 1e-4, "a float product is wrong");
    }
  digest.add(product.data(), product.size() * sizeof(float));
  const size_t channels = kTile * (1 + below(4)), count = 1 + below(5);
  const std::vector<float> past = random_floats(channels * count * rows), own = random_floats(rows * channels),
                           weights = random_floats(count * channels), gates = random_floats(rows * channels);
  std::vector<const float*> before;
  for (size_t i = 0; i < rows * (count - 1); i++) before.push_back(past.data() + below(count * rows) * channels);
  std::vector<float> mixed(rows * channels);
  table->convolve({before.data(), own.data(), gates.data(), weights.data(), weights.data(), mixed.data(), channels, count,
                   channels}, 0, rows);
  for (size_t row = 0; row < rows; row++)
    for (size_t i = 0; i < channels; i++) {
      double wanted = double(own[row * channels + i]) * weights[(count - 1) * channels + i] + weights[i];
      for (size_t tap = 0; tap + 1 < count; tap++)
        wanted += double(before[row * (count - 1) + tap][i]) * weights[tap * channels + i];
      wanted *= gates[row * channels + i];
      expect(std::fabs(mixed[row * channels + i] - wanted) < 1e-4, "a convolution is wrong");
    }
  digest.add(mixed.data(), mixed.size() * sizeof(float));
}

// A recurrence over a chain for the state and a tree behind it, against its definition.
void check_recurrence(const Kernels* table, Digest& digest) {
  const size_t group = 1 + below(2), keys = 1 + below(2), heads = group * keys, width = 1 + below(4);
  const size_t size = kTile * (1 + below(2)), values = kTile * (1 + below(3)), channels = (2 * keys * size + heads * values);
  const bool delta = below(2), several = below(8) == 0;
  const size_t applied = several ? kMostKept + below(kMostKept) : below(4), rows = applied + 1 + below(6), own = below(rows);
  const auto x = random_floats(rows * channels), weight = random_floats(width * channels), steps = random_floats(rows * heads),
             rates = random_floats(rows * heads), bias = random_floats(heads), z = random_floats(rows * heads * values),
             norm = random_floats(values), skip = random_floats(heads);
  std::vector<float> decay = random_floats(heads), zeros(channels), fades(rows * heads), shares(rows * heads);
  for (float& each : decay) each = -std::fabs(each);
  std::vector<float> y((rows - own) * heads * values), tiles(heads * size * values);
  std::vector<int32_t> parents(rows);
  std::vector<const float*> taps, step_rows, rate_rows;
  for (size_t row = 0; row < rows; row++) {
    parents[row] = static_cast<int32_t>(row <= applied ? row : applied + below(row - applied + 1)) - 1;
    step_rows.push_back(steps.data() + row * heads);
    rate_rows.push_back(rates.data() + row * heads);
    std::vector<const float*> own_taps;
    for (int32_t at = static_cast<int32_t>(row); own_taps.size() < width; at = at < 0 ? at : parents[at])
      own_taps.push_back(at < 0 ? zeros.data() : x.data() + at * channels);
    taps.insert(taps.end(), own_taps.rbegin(), own_taps.rend());
  }
  Recurrence job{taps.data(), step_rows.data(), delta ? rate_rows.data() : nullptr, parents.data(), rows, applied, own};
  job.weight = weight.data();
  job.decay = decay.data();
  job.step_bias = bias.data();
  job.skip = delta ? nullptr : skip.data();
  job.norm = delta ? norm.data() : nullptr;
  job.z = z.data() + own * heads * values;
  job.fades = fades.data();
  job.shares = shares.data();
  job.state = tiles.data();
  job.y = y.data();
  job.width = width;
  job.channels = channels;
  job.heads = heads;
  job.key_heads = keys;
  job.key_size = size;
  job.value_size = values;
  job.query_at = 0;
  job.key_at = keys * size;
  job.value_at = 2 * keys * size;
  job.scale = 1 / std::sqrt(static_cast<float>(size));
  job.epsilon = 1e-6f;
  std::vector<float> scratch(delta_floats(job));
  table->delta_gates(job, 0, rows);
  table->delta_heads(job, 0, heads, scratch.data());
  for (size_t head = 0; head < heads; head++) {
    std::vector<std::vector<double>> after;  // the state behind each row
    for (size_t row = 0; row < rows; row++) {
      const auto channel = [&](size_t at) {
        double sum = 0;
        for (size_t tap = 0; tap < width; tap++) sum += double(taps[row * width + tap][at]) * weight[tap * channels + at];
        return sum / (1 + std::exp(-sum));
      };
      std::vector<double> q, k, v;
      double q_squares = 1e-6, k_squares = 1e-6;
      for (size_t i = 0; i < size; i++) {
        q.push_back(channel(head / group * size + i));
        k.push_back(channel((keys + head / group) * size + i));
        q_squares += q[i] * q[i];
        k_squares += k[i] * k[i];
      }
      for (size_t i = 0; delta && i < size; i++) q[i] *= job.scale / std::sqrt(q_squares), k[i] /= std::sqrt(k_squares);
      for (size_t i = 0; i < values; i++) v.push_back(channel(2 * keys * size + head * values + i));
      const double step = std::log1p(std::exp(double(steps[row * heads + head]) + bias[head]));
      const double fade = std::exp(decay[head] * step), share = delta ? 1 / (1 + std::exp(-rates[row * heads + head])) : step;
      std::vector<double> next(size * values), result(values);
      if (parents[row] >= 0) next = after[parents[row]];
      double squares = 0;
      for (size_t j = 0; j < values; j++) {
        double known = 0;
        for (size_t i = 0; i < size; i++) known += k[i] * (next[i * values + j] *= fade);
        const double added = share * (delta ? v[j] - known : v[j]);
        for (size_t i = 0; i < size; i++) result[j] += q[i] * (next[i * values + j] += k[i] * added);
        if (!delta) result[j] += skip[head] * v[j];
        squares += result[j] * result[j];
      }
      for (size_t j = 0; row >= own && j < values; j++) {
        const double gate = z[(row * heads + head) * values + j];
        double wanted = result[j] * gate / (1 + std::exp(-gate));
        if (delta) wanted *= norm[j] / std::sqrt(squares / values + 1e-6);
        expect(std::fabs(y[((row - own) * heads + head) * values + j] - wanted) < 1e-3 * (1 + std::fabs(wanted)),
               "a recurrence is wrong");
      }
      after.push_back(next);
    }
    for (size_t i = 0; applied != 0 && i < size; i++)
      for (size_t j = 0; j < values; j++) {
        const size_t tile = j / 32, wide = values - tile * 32 < 32 ? kTile : 32;
        const double wanted = after[applied - 1][i * values + j];
        expect(std::fabs(tiles[head * size * values + tile * 32 * size + i * wide + j % 32] - wanted) < 1e-3 * (1 + std::fabs(wanted)),
               "a recurrence's state is wrong");
      }
  }
  digest.add(y.data(), y.size() * sizeof(float));
  digest.add(tiles.data(), tiles.size() * sizeof(float));
}

// Draws from one row of the given kind with one in `sparse` of many combinations of options; buffers have their exact
// size.
void check_draws(int kind, size_t sparse, Digest& digest) {
  const size_t size = kind % 3 == 0 ? 1 + below(200) : 2000 + below(5000);
  std::vector<float> row = random_floats(size);
  for (float& x : row) {
    x = kind % 5 == 0 ? 0.01f * x : 5.0f * (x + uniform() + uniform());
    if (kind % 5 == 1) x = std::floor(2 * x);                     // ties
    if (kind % 5 == 2 && below(10) < 7) x = -INFINITY;            // masked
    if (kind % 5 == 3 && below(size) < 4) x += 15.0f;             // peaked
    if (kind % 5 == 4) x = below(2) ? 1.0f : 1.0f - 0x1p-24f;     // neighbours
  }
  row[below(size)] = 1.0f;
  std::vector<int64_t> ids(size), seen(below(20));
  for (size_t i = 0; i < size; i++) ids[i] = 3 * i + below(3);
  for (int64_t& place : seen) place = below(size);
  std::vector<float> scratch(edgedecode_draw_scratch(size) / sizeof(float));
  for (const float scale : {0.0f, 0.01f, 1.4427f, 5.0f})
    for (const int64_t top_k : {size_t{0}, size_t{1}, size_t{40}, size / 2, size - 1})
      for (const double top_p : {1.0, 0.999, 0.9, 1e-9})
        for (const float min_p : {0.0f, 0.05f})
          for (const float penalty : {1.0f, 1.25f}) {
            if (below(sparse) != 0) continue;
            const int64_t* names = next() % 2 ? ids.data() : nullptr;
            const int64_t token = edgedecode_draw_row(row.data(), names, size, scale, top_k, top_p, min_p, penalty,
                                                      seen.data(), seen.size(), next(), scratch.data());
            expect(token >= 0, "a row is refused");
            digest.add(&token, sizeof token);
          }
  double found[2];
  const int64_t best = edgedecode_leading_row(row.data(), size, found);
  expect(best == edgedecode_argmax_row(row.data(), size), "two arg-maxima differ");
  digest.add(&best, sizeof best);
  digest.add(found, sizeof found);
  std::vector<int64_t> largest(size < 40 ? size : 40);
  edgedecode_top_row(row.data(), size, largest.size(), largest.data());
  expect(row[largest[0]] == row[best], "the first of the largest is not the maximum");
  digest.add(largest.data(), largest.size() * sizeof(int64_t));
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 200;
  const size_t sparse = count > 2 ? std::atoi(arguments[2]) : 1;  // an emulator takes seconds for all draws
  uint64_t first = 0;
  for (const char* name : {"generic", "avx2", "avxvnni", "avx512", "neon", "i8mm"}) {
    const Kernels* table = kernels_named(name);
    if (table == nullptr) continue;
    state = 1;
    Digest digest;
    for (int i = 0; i < rounds; i++) {
      check_product(table, digest);
      for (const bool int8_cache : {false, true})
        for (const bool poisoned : {false, true}) check_attention(table, digest, int8_cache, poisoned);
      check_others(table, digest);
      check_recurrence(table, digest);
    }
    std::printf("%s %016llx\n", name, static_cast<unsigned long long>(digest.value));
    if (first == 0) first = digest.value;
    expect(digest.value == first, "two instruction sets differ");
  }
  first = 0;
  for (const char* name : {"plain", "avx2", "avx512"}) {
    if (!edgedecode_draw_force(name)) continue;
    state = 2;
    Digest digest;
    for (int kind = 0; kind < 15; kind++) check_draws(kind, sparse, digest);
    std::printf("draw-%s %016llx\n", name, static_cast<unsigned long long>(digest.value));
    if (first == 0) first = digest.value;
    expect(digest.value == first, "two instruction sets draw differently");
  }
  std::vector<int> seen(1000);
  for (int i = 0; i < 300; i++) parallel_for(seen.size(), 3, [&](size_t part) { seen[part]++; });
  for (int times : seen) expect(times == 300, "a part of a job did not run exactly once");
  std::vector<uint8_t> each(70000);
  parallel_for(each.size(), 2, [&](size_t part) { each[part] = 1; });  // more parts than a ticket can count
  for (uint8_t done : each) expect(done == 1, "a job of many parts is incomplete");
  bool refused = false;
  try {
    parallel_for(64, 3, [](size_t part) {
      if (part % 7 == 3) throw std::bad_alloc();
    });
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  expect(refused, "an out-of-memory error in a part is lost");
  std::vector<uint8_t> after(64);
  parallel_for(after.size(), 3, [&](size_t part) { after[part] = 1; });
  for (uint8_t done : after) expect(done == 1, "the pool stops working after a part ran out of memory");
  return failures != 0;
}
