// The library's operators as ONNX Runtime calls them: attributes, shapes, scratch memory and threads.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels.h"
#include "onnxruntime.h"
#include "recurrent.h"
#include "walk.h"

const void* const* ort::api = nullptr;

namespace edgedecode {
namespace {

// Below these amounts of work waking a second thread takes longer than it saves.
constexpr size_t kProductNbytes = 24 << 10;
constexpr size_t kPartNbytes = 96 << 10;
constexpr size_t kRoundFloats = 16 << 10;
constexpr size_t kNormFloats = 16 << 10;
constexpr size_t kAttentionSteps = 32 << 10;
constexpr size_t kDeltaSteps = 32 << 10;
constexpr size_t kMostParts = 4096;
// Inputs of an adapter's first product that are summed together; the sums of several such pieces are added in their order.
constexpr size_t kPiece = 512;

// Memory that operators use again. There are as many pieces of a kind as were in use at one time, whatever threads come
// and go; each keeps what the longest pass took. No lock: a fork may happen at any time.
template <class T>
class Scratch {
 public:
  explicit Scratch(size_t count) {
    for (std::atomic<Memory*>& place : shelf_)
      if (place.load(std::memory_order_relaxed) != nullptr && (memory_.reset(place.exchange(nullptr)), memory_ != nullptr))
        break;
    if (memory_ == nullptr) memory_ = std::make_unique<Memory>();
    if (memory_->size() < count) {
      *memory_ = Memory();  // before the new one: never both
      memory_->resize(count);
    }
  }
  ~Scratch() {
    for (std::atomic<Memory*>& place : shelf_) {
      Memory* none = nullptr;
      if (place.compare_exchange_strong(none, memory_.get())) {
        memory_.release();
        break;
      }
    }
  }
  T* data() { return memory_->data(); }

 private:
  using Memory = std::vector<T>;
  static constexpr size_t kPlaces = 64;  // more pieces at one time are made and dropped
  static std::atomic<Memory*> shelf_[kPlaces];
  std::unique_ptr<Memory> memory_;
};
template <class T>
std::atomic<std::vector<T>*> Scratch<T>::shelf_[Scratch<T>::kPlaces];

struct Score { float value; };  // pieces of their own: they differ in size
struct Query { float value; };
struct Narrow { float value; };
struct Before { const float* row; };
struct Fade { float value; };

// The operator that this thread runs, where its parts run on the engine's pool: in a graph that keeps operators of the
// engine's, two pools would wait for each other.
thread_local ort::Context* on_engines_pool = nullptr;

// Calls body(part) for each part on the engine's threads.
template <class Body>
void engine_parallel_for(ort::Context* context, size_t parts, const Body& body) {
  struct Call {
    const Body& body;
    std::atomic<bool> failed;
    static void run(void* data, size_t part) {
      Call* call = static_cast<Call*>(data);
      const FloatMode mode;
      try {
        call->body(part);
      } catch (...) {  // the engine's threads know no exceptions: the caller says so once all parts are done
        call->failed.store(true, std::memory_order_relaxed);
      }
    }
  } call{body, {false}};
  if (!ort::parallel(context, parts, &Call::run, &call) || call.failed.load()) throw std::bad_alloc();
}

// Splits `count` into `parts` and calls body(first, last).
template <class Body>
void split(size_t count, size_t parts, int threads, const Body& body) {
  parts = parts > count ? count : parts;
  parts = parts > kMostParts ? kMostParts : parts;
  if (parts <= 1) {
    body(size_t{0}, count);
    return;
  }
  const auto one = [&](size_t part) { body(count * part / parts, count * (part + 1) / parts); };
  if (on_engines_pool != nullptr)
    engine_parallel_for(on_engines_pool, parts, one);
  else
    parallel_for(parts, threads, one);
}

// ---- RowsProduct: x [.., K], tiles, bias [N]?, tiles of a second matrix?, an adapter's matrices? → y [.., N] ---------
// The tiles are those of many matrices, mapped as one; a matrix begins at its offset. An adapter has two matrices for each
// matrix of the product, as bytes: first [K, parts * rank, 2 or 4] and second [rank, N, 2 or 4], float16 or float32; of
// rank 0 they add nothing. The second one lies in tiles of 32 columns, [N / 32, rank, 32], so N and where parts begin are
// multiples of 32. Where a product is several projections, such as query, key and value, each is a part.

// What an adapter adds for one matrix of a product.
class Delta {
 public:
  // `index` is that of the first matrix among the operator's inputs; the second and third part begin at their columns.
  Delta(ort::Context* context, size_t index, const ort::Tensor& x, size_t columns, size_t second, size_t third)
      : x_(x), first_(ort::input(context, index)), columns_(columns), second_(second), third_(third) {
    width_ = first_.dimensions == 3 ? first_.shape[1] : 0;
    if (width_ != 0) wide_ = ort::input(context, index + 1);
    rank_ = wide_.dimensions == 3 ? wide_.shape[0] : 0;
  }
  bool fits() const {
    return width_ == 0 || (first_.shape[0] == x_.last() && is_float(first_) && wide_.dimensions == 3 && is_float(wide_) &&
                           wide_.shape[1] == static_cast<int64_t>(columns_) && width_ == parts() * rank_ &&
                           (columns_ | second_ | third_) % kColumns == 0);
  }
  size_t floats() const { return pieces() * x_.rows() * width_; }

  LowRank compute(const Kernels* table, float* narrow, int threads) const {
    if (width_ == 0) return {};
    const size_t rows = x_.rows(), inner = x_.last(), count = rows * width_;
    const size_t chunks = (rows + kChunk - 1) / kChunk;
    const size_t nbytes = inner * width_ * first_.last() * chunks;
    split(pieces() * chunks, nbytes < kProductNbytes ? 1 : 4 * threads, threads, [&](size_t first, size_t last) {
      for (size_t i = first; i < last; i++) {
        const size_t piece = i / chunks, row = i % chunks * kChunk, begin = piece * kPiece;
        table->float_product({x_.as<const float>() + row * inner + begin,
                              first_.as<const uint8_t>() + begin * width_ * first_.last(), first_.last() == 2,
                              narrow + (piece * rows + row) * width_, rows - row < kChunk ? rows - row : kChunk,
                              inner - begin < kPiece ? inner - begin : kPiece, width_, inner}, 0, width_);
      }
    });
    for (size_t i = count; i < pieces() * count; i++) narrow[i % count] += narrow[i];
    return {narrow, wide_.data, wide_.last() == 2, rank_, parts(), second_, third_};
  }

 private:
  static bool is_float(const ort::Tensor& matrix) { return matrix.last() == 2 || matrix.last() == 4; }
  size_t pieces() const { return (x_.last() + kPiece - 1) / kPiece; }
  size_t parts() const { return 1 + (second_ < columns_) + (third_ < columns_); }
  const ort::Tensor& x_;
  ort::Tensor first_, wide_;
  size_t columns_, second_, third_, width_, rank_;
};

// Nodes of sessions that this thread opens use at most so many threads, whatever their graph says.
thread_local int most_node_threads = 1024;

int threads_of(const ort::KernelInfo* info) {
  const int64_t stated = ort::integer(info, "threads", 1);
  return static_cast<int>(stated < most_node_threads ? stated : most_node_threads);
}

// The form of a matrix's tiles, by a node's attributes.
Form form_of(const ort::KernelInfo* info) {
  return {static_cast<int>(ort::integer(info, "bits", 4)), static_cast<int>(ort::integer(info, "scale_every", 1)),
          ort::integer(info, "wide_scales", 0) != 0, ort::integer(info, "minima", 0) != 0,
          static_cast<int>(ort::integer(info, "levels", 0)), ort::integer(info, "bfloat16", 0) != 0,
          static_cast<int>(ort::integer(info, "table", 0))};
}

// Whether a matrix has these attributes: a graph may come from anywhere.
bool served(const Form& form, int planes, int64_t inner, int64_t columns, int threads) {
  constexpr int64_t kMost = 1 << 30;  // bytes of tiles fit 63 bits
  return form.served(planes) && inner >= 1 && inner < kMost && columns >= 1 && columns < kMost && threads >= 1 && threads <= 1024;
}

struct RowsProduct {
  int64_t inner, columns, offset, up_offset, second_part, third_part;
  Form form;
  int planes, threads;
  Gate gate;

  explicit RowsProduct(const ort::KernelInfo* info)
      : inner(ort::integer(info, "inner", 0)),
        columns(ort::integer(info, "columns", 0)),
        offset(ort::integer(info, "offset", 0)),
        up_offset(ort::integer(info, "up_offset", 0)),
        second_part(ort::integer(info, "second_part", columns)),
        third_part(ort::integer(info, "third_part", columns)),
        form(form_of(info)),
        planes(static_cast<int>(ort::integer(info, "planes", 1))),
        threads(threads_of(info)),
        gate(static_cast<Gate>(ort::integer(info, "gate", 0))) {}

  bool fits() const {
    return gate >= Gate::kNone && gate <= Gate::kGeluTanh && second_part >= 1 && second_part <= third_part && third_part <= columns;
  }

  ort::Status* compute(ort::Context* context) const {
    if (!served(form, planes, inner, columns, threads) || !fits()) return ort::fail("RowsProduct: attributes that no matrix has");
    const ort::Tensor x = ort::input(context, 0), w = ort::input(context, 1), bias = ort::input(context, 2),
                      up = ort::input(context, 3);
    const size_t sub_blocks = form.sub_blocks(inner), nbytes = form.tile_nbytes(sub_blocks);
    const size_t tiles = (columns + kColumns - 1) / kColumns;
    const int64_t needed = static_cast<int64_t>(tiles * nbytes);
    if (!x.has_rows() || x.last() != inner || offset < 0 || w.count() - offset < needed ||
        (bias.data != nullptr && bias.count() != columns) ||
        (up.data != nullptr && (up_offset < 0 || up.count() - up_offset < needed)))
      return ort::fail("RowsProduct: a shape does not fit the node's attributes");
    const Delta delta(context, 4, x, columns, second_part, third_part), up_delta(context, 6, x, columns, columns, columns);
    if (!delta.fits() || !up_delta.fits())
      return ort::fail("RowsProduct: an adapter's matrices do not fit the product");
    int64_t shape[ort::kMostDimensions];
    memcpy(shape, x.shape, sizeof shape);
    shape[x.dimensions - 1] = columns;
    float* y = static_cast<float*>(ort::output(context, 0, shape, x.dimensions));
    const size_t rows = x.rows();
    if (rows == 0) return nullptr;
    if (y == nullptr) return ort::fail("RowsProduct: no memory for the result");

    const Kernels* table = kernels();
    Product job{};
    job.weights = w.as<const uint8_t>() + offset;
    job.up = up.data == nullptr ? nullptr : up.as<const uint8_t>() + up_offset;
    job.bias = bias.as<const float>();
    job.floats = x.as<const float>();
    job.y = y;
    job.rows = rows;
    job.columns = columns;
    job.sub_blocks = sub_blocks;
    job.inner = inner;
    job.form = form;
    job.gate = gate;
    const size_t rounded = form.floats() ? 0 : rows;
    Scratch<int8_t> values(rounded * sub_blocks * 2 * kSubBlock);
    Scratch<float> scales(rounded * sub_blocks);
    Scratch<int32_t> sums(rounded * sub_blocks * form.parts());
    job.x = {values.data(), scales.data(), sums.data(), rows, sub_blocks, planes, form.bits, form.parts()};
    split(rounded, rows * inner < kRoundFloats ? 1 : 4 * threads, threads, [&](size_t first, size_t last) {
      table->round_rows(job.floats, inner, first, last, job.x);
    });
    Scratch<Narrow> narrow(1 + delta.floats() + up_delta.floats());  // never null: `->value` is an address
    job.delta = delta.compute(table, &narrow.data()->value, threads);
    job.up_delta = up_delta.compute(table, &narrow.data()->value + delta.floats(), threads);
    // Parts of equal size, several a thread, so that one that is held up leaves the rest to the other.
    const size_t work = tiles * nbytes * (up.data == nullptr ? 1 : 2) * (rows < 8 ? 1 : rows / 4);
    const size_t parts = work < kProductNbytes ? 1 : (work / kPartNbytes / threads + 1) * threads;
    split(tiles, parts > size_t(8 * threads) ? 8 * threads : parts, threads,
          [&](size_t first, size_t last) { table->product_tiles(job, first, last); });
    return nullptr;
  }
};

// ---- TileRows: ids [..] int64, tiles → y [.., K]: columns of a matrix, such as a head that is the embedding too --------

struct TileRows {
  int64_t inner, columns, offset;
  Form form;
  int threads;

  explicit TileRows(const ort::KernelInfo* info)
      : inner(ort::integer(info, "inner", 0)),
        columns(ort::integer(info, "columns", 0)),
        offset(ort::integer(info, "offset", 0)),
        form(form_of(info)),
        threads(threads_of(info)) {}

  ort::Status* compute(ort::Context* context) const {
    if (!served(form, 2, inner, columns, threads)) return ort::fail("TileRows: attributes that no matrix has");
    const ort::Tensor ids = ort::input(context, 0), w = ort::input(context, 1);
    const size_t sub_blocks = form.sub_blocks(inner);
    const size_t nbytes = (columns + kColumns - 1) / kColumns * form.tile_nbytes(sub_blocks);
    if (!ids.has_rows() || ids.dimensions >= ort::kMostDimensions || offset < 0 ||
        w.count() - offset < static_cast<int64_t>(nbytes))
      return ort::fail("TileRows: a shape does not fit the node's attributes");
    const size_t rows = ids.count();
    for (size_t i = 0; i < rows; i++)
      if (ids.as<const int64_t>()[i] < 0 || ids.as<const int64_t>()[i] >= columns)
        return ort::fail("TileRows: an id is outside the matrix");
    int64_t shape[ort::kMostDimensions];
    memcpy(shape, ids.shape, sizeof shape);
    shape[ids.dimensions] = inner;
    float* y = static_cast<float*>(ort::output(context, 0, shape, ids.dimensions + 1));
    if (rows == 0) return nullptr;
    if (y == nullptr) return ort::fail("TileRows: no memory for the result");
    const Tiled matrix{w.as<const uint8_t>() + offset, sub_blocks, form};
    split(rows, rows * inner < kNormFloats ? 1 : 4 * threads, threads, [&](size_t first, size_t last) {
      for (size_t i = first; i < last; i++) unpack_column(matrix, ids.as<const int64_t>()[i], inner, y + i * inner);
    });
    return nullptr;
  }
};

// ---- TreeAttention: the inputs are those of `_tree_attention` in rewriting.py ------------------------------------------------

template <class Cache>
struct TreeAttention {
  int64_t heads, kv_heads, window;
  float scale, soft_cap;
  bool interleaved, shared;  // shared: of queries alone, perhaps of picked rows; another layer wrote keys and values
  bool block;                // picked rows alone have queries, which see all rows of the pass
  int threads;

  explicit TreeAttention(const ort::KernelInfo* info)
      : heads(ort::integer(info, "num_heads", 1)),
        kv_heads(ort::integer(info, "kv_num_heads", 1)),
        window(ort::integer(info, "window", 0)),
        scale(ort::number(info, "scale", 0.0f)),
        soft_cap(ort::number(info, "softcap", 0.0f)),
        interleaved(ort::integer(info, "rotary_interleaved", 0) != 0),
        shared(ort::integer(info, "shared", 0) != 0),
        block(ort::integer(info, "block", 0) != 0),
        threads(threads_of(info)) {}

  ort::Status* compute(ort::Context* context) const {
    const ort::Tensor q = ort::input(context, 0), k = ort::input(context, 1), v = ort::input(context, 2),
                      keys = ort::input(context, 3), values = ort::input(context, 4), total = ort::input(context, 5),
                      cosines = ort::input(context, 6), sines = ort::input(context, 7),
                      positions = ort::input(context, 8), parents = ort::input(context, 9),
                      key_scales = ort::input(context, 10), value_scales = ort::input(context, 11),
                      picks = ort::input(context, 12);
    if (keys.dimensions != 4 || !q.has_rows()) return ort::fail("TreeAttention: a cache of another form");
    const size_t size = keys.last(), capacity = keys.shape[2], rows = q.rows();
    const int64_t width = size;
    const bool packed = k.data == nullptr && !shared;
    const int64_t taken = block ? positions.count() : q.rows();
    if (heads < 1 || window < 0 || threads < 1 || threads > 1024 || !q.has_rows() || keys.dimensions != 4 ||
        positions.data == nullptr || total.data == nullptr || keys.shape[1] != kv_heads || values.count() != keys.count() ||
        size > kMostSize || size % kTile != 0 || capacity % kTile != 0 || kv_heads < 1 || heads % kv_heads != 0 ||
        q.last() != (packed ? heads + 2 * kv_heads : heads) * width ||
        (!packed && !shared && (k.last() != kv_heads * width || v.last() != kv_heads * width || k.rows() != taken ||
                      v.rows() != taken)) ||
        total.count() != 1 || (picks.data == nullptr && !block ? positions : picks).count() != static_cast<int64_t>(rows) ||
        (picks.data != nullptr && !shared && !block) || (block && (shared || packed || parents.count() != 0)))
      return ort::fail("TreeAttention: a shape does not fit the node's attributes");
    const size_t filled = *total.as<const int32_t>(), tree = parents.data == nullptr ? 0 : parents.count();
    const size_t appended = positions.count();
    if (filled < appended || filled > capacity || (tree != 0 && (tree < appended || tree > filled)))
      return ort::fail("TreeAttention: the lengths do not fit the cache");
    for (size_t i = 0; picks.data != nullptr && i < rows; i++)
      if (picks.as<const int64_t>()[i] < 0 || picks.as<const int64_t>()[i] >= positions.count())
        return ort::fail("TreeAttention: a picked row is outside the pass");
    for (size_t i = 0; i < tree; i++) {
      const int32_t parent = parents.as<const int32_t>()[i];
      if (parent < -1 || parent >= static_cast<int32_t>(i)) return ort::fail("TreeAttention: a parent comes after its child");
    }
    const size_t rotary = cosines.data == nullptr ? 0 : 2 * cosines.last();
    if (rotary > size || (cosines.data != nullptr && (!cosines.has_rows() || sines.count() != cosines.count())))
      return ort::fail("TreeAttention: the rotary tables do not fit the heads");
    for (size_t i = 0; rotary != 0 && i < appended; i++)
      if (positions.as<const int64_t>()[i] < 0 || positions.as<const int64_t>()[i] >= cosines.rows())
        return ort::fail("TreeAttention: a position is outside the rotary tables");
    const bool int8_cache = sizeof(Cache) == 1;
    if (int8_cache && (key_scales.count() != kv_heads * width || value_scales.count() != kv_heads * width))
      return ort::fail("TreeAttention: the scales do not fit the heads");

    int64_t shape[3] = {1, static_cast<int64_t>(rows), heads * width};
    float* y = static_cast<float*>(ort::output(context, 0, shape, 3));
    void* present_keys = shared ? const_cast<void*>(keys.data) : ort::output(context, 1, keys.shape, 4);
    void* present_values = shared ? const_cast<void*>(values.data) : ort::output(context, 2, values.shape, 4);
    if (block ? taken == 0 : rows == 0) return nullptr;
    if ((y == nullptr && rows != 0) || present_keys == nullptr || present_values == nullptr)
      return ort::fail("TreeAttention: no memory for the result");
    if (present_keys != keys.data) {  // unless past and present are bound to the same memory
      memcpy(present_keys, keys.data, keys.count() * sizeof(Cache));
      memcpy(present_values, values.data, values.count() * sizeof(Cache));
    }

    const Kernels* table = kernels();
    Attention job{};
    job.keys = present_keys;
    job.values = present_values;
    job.value_scales = value_scales.as<const float>();
    job.parents = tree == 0 ? nullptr : parents.as<const int32_t>();
    job.y = y;
    job.rows = rows;
    job.heads = heads;
    job.kv_heads = kv_heads;
    job.size = size;
    job.capacity = capacity;
    job.appended = appended;
    job.picks = picks.as<const int64_t>();
    job.pending = tree == 0 ? appended : tree;
    job.settled = filled - job.pending;
    job.window = window;
    job.soft_cap = soft_cap;
    job.int8_cache = int8_cache;
    job.block = block;
    Intake in{};
    const size_t stride = q.last();
    in.q = q.as<const float>();
    in.k = packed ? in.q + heads * size : k.as<const float>();  // null: shared
    in.v = packed ? in.k + kv_heads * size : v.as<const float>();
    in.q_stride = stride;
    in.k_stride = in.v_stride = packed ? stride : kv_heads * size;
    in.cosines = cosines.as<const float>();
    in.sines = sines.as<const float>();
    in.positions = positions.as<const int64_t>();
    in.rotary = rotary;
    in.interleaved = interleaved;
    in.scale = scale;
    in.key_scales = key_scales.as<const float>();
    in.value_scales = value_scales.as<const float>();
    if (block) {  // keys and values of every row first
      Attention every = job;
      every.picks = nullptr;
      Intake given = in;
      given.q = nullptr;
      split(appended, appended * in.k_stride < kRoundFloats ? 1 : 4 * threads, threads,
            [&](size_t first, size_t last) { table->take_in(given, every, first, last); });
      in.k = in.v = nullptr;
      if (rows == 0) return nullptr;
    }
    Scratch<Query> room(rows * heads * size);
    in.queries = &room.data()->value;
    job.queries = in.queries;
    split(rows, rows * stride < kRoundFloats ? 1 : 4 * threads, threads,
          [&](size_t first, size_t last) { table->take_in(in, job, first, last); });

    // Each part has one key/value head and some of its queries: at least four, which share what is read.
    const size_t queries = rows * (heads / kv_heads), steps = queries * kv_heads * filled * size;
    const size_t wanted = (queries > kQueries ? 4 : 1) * threads / kv_heads;
    const size_t most = (queries + 3) / 4;
    const size_t chunks = wanted < 1 ? 1 : wanted > most ? most : wanted;
    const auto one = [&](size_t part) {
      const size_t head = part / chunks, chunk = part % chunks;
      const size_t first = queries * chunk / chunks, last = queries * (chunk + 1) / chunks;
      if (first >= last) return;
      Scratch<Score> scores(score_floats(job));
      table->attend(job, head, first, last, &scores.data()->value);
    };
    if (steps < kAttentionSteps) {
      for (size_t part = 0; part < kv_heads * chunks; part++) one(part);
    } else {
      split(kv_heads * chunks, kv_heads * chunks, threads, [&](size_t first, size_t last) {
        for (size_t part = first; part < last; part++) one(part);
      });
    }
    return nullptr;
  }
};

// ---- GatedDelta: x [.., C], steps [.., H], z [.., H * V], convolution [width, C], decay [H], what is added to steps [H],
// rates [.., H]?, norm [V]?, bias [C]?, skip [H]?, the inputs of `Recurrent` → y [.., H * V], state, slots -----------------
// See Recurrence in kernels.h. C are queries, keys and values; without rates, which is Mamba-2, x, B and C, in this order.

struct GatedDelta {
  int64_t heads, key_heads, key_size, value_size, width;
  bool delta, interleaved;
  float epsilon;
  int threads;

  explicit GatedDelta(const ort::KernelInfo* info)
      : heads(ort::integer(info, "heads", 0)),
        key_heads(ort::integer(info, "key_heads", 0)),
        key_size(ort::integer(info, "key_size", 0)),
        value_size(ort::integer(info, "value_size", 0)),
        width(ort::integer(info, "width", 0)),
        delta(ort::integer(info, "delta", 1) != 0),
        interleaved(ort::integer(info, "interleaved", 0) != 0),
        epsilon(ort::number(info, "epsilon", 1e-6f)),
        threads(threads_of(info)) {}

  bool fits() const {
    const auto served = [](int64_t size) { return size > 0 && size <= int64_t(kMostSize) && size % kTile == 0; };
    return heads > 0 && heads <= 4096 && key_heads > 0 && heads % key_heads == 0 && served(key_size) && served(value_size) &&
           width > 0 && width <= int64_t(kMostTaps) && threads >= 1 && threads <= 1024;
  }

  ort::Status* compute(ort::Context* context) const {
    if (!fits()) return ort::fail("GatedDelta: attributes that no layer has");
    const ort::Tensor x = ort::input(context, 0), steps = ort::input(context, 1), z = ort::input(context, 2),
                      weight = ort::input(context, 3), decay = ort::input(context, 4), step_bias = ort::input(context, 5),
                      rates = ort::input(context, 6), norm = ort::input(context, 7), bias = ort::input(context, 8),
                      skip = ort::input(context, 9);
    const int64_t keys = key_heads * key_size, values = heads * value_size, channels = 2 * keys + values, rows = x.rows();
    const auto has = [](const ort::Tensor& tensor, int64_t count) { return tensor.data == nullptr || tensor.count() == count; };
    if (rows < 0 || x.last() != channels || steps.count() != rows * heads || z.count() != rows * values ||
        weight.count() != width * channels || decay.count() != heads || step_bias.count() != heads ||
        (delta ? rates.count() != rows * heads : rates.data != nullptr) || !has(norm, value_size) || !has(bias, channels) ||
        !has(skip, heads))
      return ort::fail("GatedDelta: a shape does not fit the node's attributes");
    int64_t shape[ort::kMostDimensions];
    memcpy(shape, x.shape, sizeof shape);
    shape[x.dimensions - 1] = values;
    float* y = static_cast<float*>(ort::output(context, 0, shape, x.dimensions));
    if (y == nullptr && rows != 0) return ort::fail("GatedDelta: no memory for the result");
    const MemoryForm form{static_cast<size_t>(width - 1), static_cast<size_t>(channels),
                          static_cast<size_t>(delta ? 2 * heads : heads), static_cast<size_t>(key_size * values)};
    Recurrent memory(context, 10, rows, form.values(), form.slot());
    if (memory.fault != nullptr) return ort::fail(memory.fault);
    if (memory.most > kMostKept) return ort::fail("GatedDelta: more slots than it serves");
    const Walk walk(memory, form, x.as<const float>());

    const Kernels* table = kernels();
    std::vector<const float*> step_rows(walk.count()), rate_rows(walk.count());
    for (size_t row = 0; row < walk.count(); row++) {
      const float* gates = walk.inputs[row] + channels;
      step_rows[row] = row < walk.own ? gates : steps.as<const float>() + (row - walk.own) * heads;
      rate_rows[row] = row < walk.own ? gates + heads : rates.as<const float>() + (row - walk.own) * heads;
    }
    Scratch<Fade> fades(2 * walk.count() * heads);
    Recurrence job{};
    job.taps = walk.taps.data();
    job.steps = step_rows.data();
    job.rates = delta ? rate_rows.data() : nullptr;
    job.parents = walk.parents.data();
    job.rows = walk.count();
    job.applied = walk.applied;
    job.own = walk.own;
    job.weight = weight.as<const float>();
    job.bias = bias.as<const float>();
    job.decay = decay.as<const float>();
    job.step_bias = step_bias.as<const float>();
    job.skip = skip.as<const float>();
    job.norm = norm.as<const float>();
    job.z = z.as<const float>();
    job.fades = &fades.data()->value;
    job.shares = job.fades + walk.count() * heads;
    job.state = memory.state + form.inner_at();
    job.y = y;
    job.width = width;
    job.channels = channels;
    job.heads = heads;
    job.key_heads = key_heads;
    job.key_size = key_size;
    job.value_size = value_size;
    job.query_at = delta ? 0 : values + keys;  // q, k, v; of Mamba-2 x, B, C, which are v, k, q
    job.key_at = delta ? keys : values;
    job.value_at = delta ? 2 * keys : 0;
    job.interleaved = interleaved;
    job.scale = 1.0f / sqrtf(static_cast<float>(key_size));
    job.epsilon = epsilon;
    table->delta_gates(job, 0, job.rows);
    memory.begin_change();
    split(heads, walk.count() * keys * value_size < kDeltaSteps ? 1 : heads, threads, [&](size_t first, size_t last) {
      Scratch<Query> scratch(delta_floats(job));
      table->delta_heads(job, first, last, &scratch.data()->value);
    });
    walk.finish([&](size_t row, size_t index) {
      return index < job.heads ? steps.as<const float>()[row * heads + index] : rates.as<const float>()[row * heads + index - heads];
    });
    memory.end_writing();
    return nullptr;
  }
};

// ---- RowsNorm: x [.., C], weight [C], skip? → y, x + skip? ----------------------------------------------------------

struct RowsNorm {
  float epsilon;
  int threads;

  explicit RowsNorm(const ort::KernelInfo* info)
      : epsilon(ort::number(info, "epsilon", 1e-5f)), threads(threads_of(info)) {}

  ort::Status* compute(ort::Context* context) const {
    const ort::Tensor x = ort::input(context, 0), weight = ort::input(context, 1), skip = ort::input(context, 2);
    if (!x.has_rows() || weight.count() != x.last() || (skip.data != nullptr && skip.count() != x.count()))
      return ort::fail("RowsNorm: shapes differ");
    Norm job{};
    job.x = x.as<const float>();
    job.skip = skip.as<const float>();
    job.weight = weight.as<const float>();
    job.y = static_cast<float*>(ort::output(context, 0, x.shape, x.dimensions));
    job.sum = static_cast<float*>(ort::output(context, 1, x.shape, x.dimensions));
    job.rows = x.rows();
    job.columns = x.last();
    job.epsilon = epsilon;
    if (job.rows == 0) return nullptr;
    if (job.y == nullptr || (job.sum != nullptr && job.skip == nullptr)) return ort::fail("RowsNorm: a sum needs two inputs");
    const Kernels* table = kernels();
    split(job.rows, job.rows * job.columns < kNormFloats ? 1 : 4 * threads, threads,
          [&](size_t first, size_t last) { table->norm_rows(job, first, last); });
    return nullptr;
  }
};

// ---- RowsPointwise: x → y, value by value ---------------------------------------------------------------------------

struct RowsPointwise {
  Pointwise kind;
  int threads;

  explicit RowsPointwise(const ort::KernelInfo* info)
      : kind(static_cast<Pointwise>(ort::integer(info, "kind", 0))),
        threads(threads_of(info)) {}

  ort::Status* compute(ort::Context* context) const {
    const ort::Tensor x = ort::input(context, 0);
    if (!x.has_rows()) return ort::fail("RowsPointwise: not rows of values");
    float* y = static_cast<float*>(ort::output(context, 0, x.shape, x.dimensions));
    const size_t count = x.count();
    if (count == 0) return nullptr;
    if (y == nullptr) return ort::fail("RowsPointwise: no memory for the result");
    const Kernels* table = kernels();
    split(count, count < kNormFloats ? 1 : 4 * threads, threads, [&](size_t first, size_t last) {
      table->pointwise(kind, x.as<const float>() + first, y + first, last - first);
    });
    return nullptr;
  }
};

// ---- FloatProduct: x [.., K], w [K, N] → y [.., N], both float32 ----------------------------------------------------

struct FloatOperator {
  int threads;

  explicit FloatOperator(const ort::KernelInfo* info) : threads(threads_of(info)) {}

  ort::Status* compute(ort::Context* context) const {
    const ort::Tensor x = ort::input(context, 0), w = ort::input(context, 1);
    if (!x.has_rows() || w.dimensions != 2 || x.last() != w.shape[0]) return ort::fail("FloatProduct: shapes differ");
    int64_t shape[ort::kMostDimensions];
    memcpy(shape, x.shape, sizeof shape);
    shape[x.dimensions - 1] = w.last();
    float* y = static_cast<float*>(ort::output(context, 0, shape, x.dimensions));
    const size_t rows = x.rows(), inner = w.shape[0], columns = w.last();
    if (rows * columns == 0) return nullptr;
    if (y == nullptr) return ort::fail("FloatProduct: no memory for the result");
    const Kernels* table = kernels();
    const size_t tiles = (columns + kTile - 1) / kTile;
    split(tiles, rows * inner * columns < kAttentionSteps ? 1 : 4 * threads, threads, [&](size_t first, size_t last) {
      const size_t end = last * kTile < columns ? last * kTile : columns;
      table->float_product({x.as<const float>(), w.data, false, y, rows, inner, columns, inner}, first * kTile, end);
    });
    return nullptr;
  }
};

// ---- ShortConvolution: x [.., 3 C], weights [count, C], bias [C]?, the inputs of `Recurrent` → y [.., C], state, slots ----
// x is three parts of C values, of which the first and last are multiplied before and the second after. The state has the
// last count - 1 inputs, the oldest first, and a slot one row's.

struct ShortConvolution {
  int64_t channels;
  int threads;

  explicit ShortConvolution(const ort::KernelInfo* info)
      : channels(ort::integer(info, "channels", 0)),
        threads(threads_of(info)) {}

  ort::Status* compute(ort::Context* context) const {
    const ort::Tensor x = ort::input(context, 0), weights = ort::input(context, 1), bias = ort::input(context, 2);
    if (channels < 1 || channels % kTile != 0 || !x.has_rows() || x.last() != 3 * channels ||
        weights.dimensions != 2 || weights.last() != channels || weights.shape[0] < 1 || weights.shape[0] > 64 ||
        (bias.data != nullptr && bias.count() != channels))
      return ort::fail("ShortConvolution: a shape does not fit the node's attributes");
    const size_t rows = x.rows(), width = channels, count = weights.shape[0], before = count - 1;
    Recurrent memory(context, 3, rows, before * width, width);
    if (memory.fault != nullptr) return ort::fail(memory.fault);
    int64_t shape[ort::kMostDimensions];
    memcpy(shape, x.shape, sizeof shape);
    shape[x.dimensions - 1] = channels;
    float* y = static_cast<float*>(ort::output(context, 0, shape, x.dimensions));
    if (rows == 0) return nullptr;
    if (y == nullptr) return ort::fail("ShortConvolution: no memory for the result");
    Scratch<Query> room(rows * width);
    Scratch<Before> places(rows * before);

    Convolution job{};
    const float* parts = x.as<const float>();
    float* inputs = &room.data()->value;
    for (size_t row = 0; row < rows; row++)
      for (size_t i = 0; i < width; i++)
        inputs[row * width + i] = parts[row * 3 * width + i] * parts[row * 3 * width + 2 * width + i];
    job.x = inputs;
    job.gate = parts + width;
    job.gate_stride = 3 * width;
    memory.begin_change();
    for (size_t i = 0; i < memory.applied; i++) shift(memory, before, memory.slots + memory.apply[i] * width);
    memory.end_applying();

    for (size_t row = 0; row < rows; row++) {
      int64_t slot = memory.start + row;
      for (size_t tap = before; tap-- > 0;) {
        slot = slot < 0 ? slot - 1 : memory.parent(slot);
        const int64_t own = slot - static_cast<int64_t>(memory.start);
        const float* from = own >= 0 ? job.x + own * width : slot >= 0 ? memory.slots + slot * width
                                     : memory.state + (before + slot) * width;
        places.data()[row * before + tap].row = from;
      }
    }
    job.before = &places.data()->row;
    job.weights = weights.as<const float>();
    job.bias = bias.as<const float>();
    job.y = y;
    job.channels = width;
    job.count = count;
    const Kernels* table = kernels();
    split(rows, rows * count * width < kNormFloats ? 1 : 4 * threads, threads,
          [&](size_t first, size_t last) { table->convolve(job, first, last); });

    if (memory.through != 0) {
      memory.begin_change();
      for (size_t row = 0; row < memory.through; row++) shift(memory, before, job.x + row * width);
      memory.end_writing();
    }
    memcpy(memory.slots + memory.start * width, job.x + memory.through * width, (rows - memory.through) * width * sizeof(float));
    return nullptr;
  }

  // Appends a row to the state, whose oldest one it drops.
  static void shift(Recurrent& memory, size_t before, const float* row) {
    if (before == 0) return;
    memmove(memory.state, memory.state + memory.width, (before - 1) * memory.width * sizeof(float));
    memcpy(memory.state + (before - 1) * memory.width, row, memory.width * sizeof(float));
  }
};

// ---- Registration ---------------------------------------------------------------------------------------------------

// What an operator takes and gives, by position: an element type, and whether it may be left out.
struct Signature {
  const char* name;
  size_t input_count, output_count;
  int inputs[15], outputs[3];
  size_t first_optional_input, last_optional_input, first_optional_output;
  size_t second_optional_input;  // optional from here to the end
};

struct Operator {
  ort::CustomOp op;  // first: the engine hands back a pointer to it
  Signature signature;
};

const Signature& signature_of(const ort::CustomOp* op) { return reinterpret_cast<const Operator*>(op)->signature; }

template <class Kernel>
struct Made {
  Kernel kernel;
  bool engines_pool;
  explicit Made(const ort::KernelInfo* info) : kernel(info), engines_pool(ort::integer(info, "engines_pool", 0) != 0) {}
};

template <class Kernel>
ort::Status* create(const ort::CustomOp*, const void*, const ort::KernelInfo* info, void** made) {
  *made = new (std::nothrow) Made<Kernel>(info);
  return *made == nullptr ? ort::fail("no memory for an operator") : nullptr;
}

template <class Kernel>
ort::Status* compute(void* made, ort::Context* context) {
  const Made<Kernel>* own = static_cast<const Made<Kernel>*>(made);
  const FloatMode mode;
  on_engines_pool = own->engines_pool ? context : nullptr;
  try {
    return own->kernel.compute(context);
  } catch (const std::bad_alloc&) {
    return ort::fail("no memory for an operator's intermediate values");
  } catch (...) {
    return ort::fail("an operator of edgedecode failed");
  }
}

template <class Kernel>
Operator* make(const Signature& signature) {
  Operator* made = new Operator{};
  ort::CustomOp& op = made->op;
  made->signature = signature;
  op.version = ort::kVersion;
  op.GetName = [](const ort::CustomOp* self) { return signature_of(self).name; };
  op.GetProvider = [](const ort::CustomOp*) { return "CPUExecutionProvider"; };
  op.GetInputType = [](const ort::CustomOp* self, size_t i) { return signature_of(self).inputs[i]; };
  op.GetInputCount = [](const ort::CustomOp* self) { return signature_of(self).input_count; };
  op.GetOutputType = [](const ort::CustomOp* self, size_t i) { return signature_of(self).outputs[i]; };
  op.GetOutputCount = [](const ort::CustomOp* self) { return signature_of(self).output_count; };
  op.Destroy = [](void* kernel) { delete static_cast<Made<Kernel>*>(kernel); };
  op.GetInputCharacteristic = [](const ort::CustomOp* self, size_t i) -> int {
    const Signature& s = signature_of(self);
    const bool optional = (i >= s.first_optional_input && i <= s.last_optional_input) || i >= s.second_optional_input;
    return optional ? ort::kOptional : ort::kRequired;
  };
  op.GetOutputCharacteristic = [](const ort::CustomOp* self, size_t i) -> int {
    return i >= signature_of(self).first_optional_output ? ort::kOptional : ort::kRequired;
  };
  op.GetInputMemory = [](const ort::CustomOp*, size_t) { return 0; };
  op.GetVariadicInputMin = op.GetVariadicInputSame = op.GetVariadicOutputMin = op.GetVariadicOutputSame =
      [](const ort::CustomOp*) { return 1; };
  op.CreateKernelV2 = create<Kernel>;
  op.ComputeV2 = compute<Kernel>;
  op.GetStartVersion = [](const ort::CustomOp*) { return 1; };
  op.GetEndVersion = [](const ort::CustomOp*) { return 2147483647; };
  return made;
}

constexpr int F = ort::kFloat, U = ort::kUint8, B = ort::kInt8, I = ort::kInt32, L = ort::kInt64;

}  // namespace
}  // namespace edgedecode

EDGE_EXPORT void edgedecode_limit_nodes(int threads) { edgedecode::most_node_threads = threads; }

// The engine calls this when a session's options name the library. The operators live as long as the process.
EDGE_EXPORT ort::Status* RegisterCustomOps(ort::Options* options, const ort::ApiBase* base) {
  using namespace edgedecode;
  const void* const* api = base->GetApi(ort::kVersion);
  ort::api = api != nullptr ? api : base->GetApi(1);  // of which an older engine has at least kCreateStatus
  if (api == nullptr) {
    char message[120];
    snprintf(message, sizeof message, "it needs ONNX Runtime 1.%u or newer, and this is %s: upgrade onnxruntime",
             ort::kVersion, base->GetVersionString());
    return ort::fail(message);
  }
  static Operator* const operators[] = {
      make<RowsProduct>({"RowsProduct", 8, 1, {F, U, F, U, U, U, U, U}, {F}, 2, 7, 1, 12}),
      make<TileRows>({"TileRows", 2, 1, {L, U}, {F}, 12, 12, 1, 12}),
      make<TreeAttention<float>>({"TreeAttention", 13, 3, {F, F, F, F, F, I, F, F, L, I, F, F, L}, {F, F, F}, 1, 2, 1, 6}),
      make<TreeAttention<int8_t>>(
          {"TreeAttentionInt8", 13, 3, {F, F, F, B, B, I, F, F, L, I, F, F, L}, {F, B, B}, 1, 2, 1, 6}),
      make<GatedDelta>({"GatedDelta", 15, 3, {F, F, F, F, F, F, F, F, F, F, F, F, I, I, I}, {F, F, F}, 6, 9, 3, 15}),
      make<RowsNorm>({"RowsNorm", 3, 2, {F, F, F}, {F, F}, 2, 2, 1, 12}),
      make<RowsPointwise>({"RowsPointwise", 1, 1, {F}, {F}, 12, 12, 1, 12}),
      make<FloatOperator>({"FloatProduct", 2, 1, {F, F}, {F}, 12, 12, 1, 12}),
      make<ShortConvolution>({"ShortConvolution", 8, 3, {F, F, F, F, F, I, I, I}, {F, F, F}, 2, 2, 3, 12}),
  };
  ort::Domain* domain = nullptr;
  if (ort::Status* status = ort::call(ort::kCreateCustomOpDomain, "edgedecode", &domain)) return status;
  for (const Operator* each : operators)
    if (ort::Status* status = ort::call(ort::kCustomOpDomainAdd, domain, &each->op))
      return status;
  return ort::call(ort::kAddCustomOpDomain, options, domain);
}
