// What the parts of the library share: the arguments of each kernel, the table of kernels of one instruction set,
// and the thread pool. Every kernel keeps one contract: the bits of a row depend on that row and its past alone,
// never on how many rows, branches or threads a pass has, and they are the same on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

#if defined(EDGE_STATIC)  // linked into the native library, whose interface is its own
#define EDGE_EXPORT extern "C"
#elif defined(_WIN32)
#define EDGE_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#if defined(_MSC_VER)
#define EDGE_INLINE static __forceinline
#else
#define EDGE_INLINE static inline __attribute__((always_inline))
#endif

namespace edgedecode {

// Weights are stored in tiles of 32 output columns, K in sub-blocks of 32 (see prepare.cpp).
constexpr size_t kColumns = 32;
constexpr size_t kSubBlock = 32;
// Attention stores keys in tiles of 16 slots; sums that run over many values run in 16 lanes.
constexpr size_t kTile = 16;
// Attention handles this many query vectors at once; its score buffer is this many rows.
constexpr size_t kQueries = 16;
// Largest size of a head.
constexpr size_t kMostSize = 512;
// Most rows whose inputs a layer with a recurrence keeps, and most inputs of its convolution.
constexpr size_t kMostKept = 64, kMostTaps = 16;

// Weights of 4 bits may be indices of a table; as the bits of a kernel, these are called:
constexpr int kIndices = 0;
// The tables, plus 128: of IQ4_NL and IQ4_XS, and of MXFP4, doubled (ggml-common.h, kvalues_iq4nl and kvalues_mxfp4).
constexpr uint8_t kTables[2][16] = {
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
    {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116},
};

// What packed weights have instead of 0, unless they have minima.
constexpr int zero_of(int bits) { return bits == kIndices ? 128 : 1 << (bits - 1); }

// Bytes of a sub-block of 32 columns.
constexpr size_t nbytes_of(int bits) { return kSubBlock * kColumns * (bits == kIndices ? 4 : bits) / 8; }

// Whether there are kernels for weights of `bits` bits with these scales: those that GGUF's types and MatMulNBits need.
constexpr bool served(int bits, int planes, bool minima, int levels) {
  switch (bits) {
    case 4: return planes == 2 ? levels != 1 || minima : !minima && levels == 0;
    case 5: return planes == 2 && (levels == 0 || (levels == 1 && minima));
    case 6: return planes == 2 && !minima && levels == 2;
    case 8: return !minima && levels == 0;
    default: return bits == kIndices && planes == 2 && !minima && levels < 2;
  }
}

// Products take this many rows at once; their rounded values lie together.
constexpr size_t kChunk = 16;

struct BFloat16 {
  uint16_t bits;
};

// How the weights of a matrix lie in its tiles (see prepare.cpp).
struct Form {
  int bits;          // 4, 5, 6 or 8; floats without scales: 16 or 32
  int scale_every;   // sub-blocks that share a scale: block size / 32
  bool wide_scales;  // float32 instead of float16
  bool minima;       // behind the scales, and the weights have no zero point
  int levels;        // factors of 8 bits for each sub-block, by which its block's scale is multiplied (and as many for the
                     // minimum): 1, or 2 for its halves; 0: none
  bool bfloat16;      // 16 bits are a bfloat16
  int table;          // the 4 bits are indices of kTables[table - 1]; 0: none

  bool floats() const { return bits >= 16; }
  bool served(int planes) const {
    if (planes < 1 || planes > 2 || levels < 0 || levels > 2 || table < 0 || table > 2) return false;
    if (floats()) return (bits == 16 || bits == 32) && scale_every == 1 && !minima && levels == 0;
    const bool known = scale_every == 1 || scale_every == 2 || scale_every == 4 || scale_every == 8;
    return known && (table == 0 || bits == 4) && edgedecode::served(kind(), planes, minima, levels);
  }
  int kind() const { return table == 0 ? bits : kIndices; }
  int parts() const { return levels == 2 ? 2 : 1; }  // of a sub-block, with a scale each
  int zero() const { return minima ? 0 : zero_of(kind()); }
  size_t sub_nbytes() const { return kSubBlock * kColumns * bits / 8; }
  size_t level_nbytes() const { return kColumns * levels * (minima ? 2 : 1); }
  size_t factor_nbytes() const { return floats() ? 0 : kColumns * (wide_scales ? 4 : 2); }
  size_t block_nbytes() const {
    return scale_every * (sub_nbytes() + level_nbytes()) + factor_nbytes() * (minima ? 2 : 1);
  }
  // Sub-blocks of `inner` inputs, with those that fill the last block.
  size_t sub_blocks(size_t inner) const {
    const size_t block = kSubBlock * scale_every;
    return (inner + block - 1) / block * scale_every;
  }
  // Bytes of one tile of prepared weights, a multiple of 32.
  size_t tile_nbytes(size_t sub_blocks) const { return sub_blocks / scale_every * block_nbytes(); }
};

// Rows rounded to integers, one scale for each row and sub-block of 32, in chunks of 16 rows. A chunk with n rows
// begins behind the ones before it and holds, for each of its sub-blocks, n rows: 32 values each (their order and
// width are those that the products of an instruction set read, at most 64 bytes), a scale and the sum of each part.
struct Rounded {
  int8_t* values;  // [rows * sub_blocks * 64] at most
  float* scales;   // [rows * sub_blocks]
  int32_t* sums;   // [rows * sub_blocks * parts]: of the values
  size_t rows, sub_blocks;
  int planes;  // 1: values of 8 bits, 2: of 16 bits
  int bits;    // of the weights that they are for: with two planes all are the same
  int parts;   // of a sub-block: see Form
};

enum class Gate : int { kNone = 0, kSilu = 1, kGeluTanh = 2 };

// What an adapter adds to a product: narrow · wide, where narrow [rows, parts * rank] is the rows times its first matrix.
// Columns from `second` on and from `third` on are the second and third part, each with a rank of its own; all of these
// are multiples of 32.
struct LowRank {
  const float* narrow;
  const void* wide;  // [columns / 32, rank, 32], float16 or float32
  bool half;
  size_t rank;  // 0: nothing is added
  size_t parts, second, third;
};

// y[rows, columns] = x · W (+ bias) (+ delta), or gate(that) * (x · up (+ up_delta)) when `up` is given.
struct Product {
  const uint8_t* weights;
  const uint8_t* up;  // null: no gate
  const float* bias;  // null: none
  Rounded x;
  const float* floats;  // x itself, [rows, inner], which weights in floats multiply instead
  float* y;
  size_t rows, columns, sub_blocks, inner;
  Form form;  // with levels, x has two planes
  Gate gate;
  LowRank delta, up_delta;
};

// y[rows, columns] = x[rows, inner] · w[inner, columns] in float32; the rows of x begin `stride` floats apart.
struct FloatProduct {
  const float* x;
  const void* w;
  bool half;  // w has float16
  float* y;
  size_t rows, inner, columns, stride;
};

// A matrix as tiles, for who reads single columns of it.
struct Tiled {
  const uint8_t* tiles;
  size_t sub_blocks;
  Form form;
};

// Writes the first `inner` weights of a column as floats: (quant - zero point) * scale, or quant * scale + minimum,
// rounded once.
void unpack_column(const Tiled& matrix, size_t column, size_t inner, float* out);

// What `attend` reads and writes. Slot s of a head's keys is stored in tile s / 16, transposed: [tile][size][16].
// Values are stored by slot: [slot][size]. A row sees slots 0 to settled - 1, then its path through the pending rows.
struct Attention {
  const float* queries;  // [rows, heads, size], rotated and scaled
  void* keys;            // [kv_heads, capacity, size], float32 or int8
  void* values;
  const float* value_scales;  // int8: [kv_heads, size]
  const int32_t* parents;     // [pending] or null for a chain
  float* y;                   // [rows, heads * size]
  size_t rows, heads, kv_heads, size, capacity;
  size_t settled;   // slots that every row sees
  size_t pending;   // slots behind them, the rows of this pass the last of them
  size_t appended;  // rows of this pass
  const int64_t* picks;  // [rows]: the number in the pass of each row with a query; null: all have one
  size_t window;    // 0: none; else a row sees this many positions, its own included
  float soft_cap;   // 0: none
  bool int8_cache;
  bool block;  // every row with a query sees all rows of the pass

  size_t place(size_t row) const { return picks == nullptr ? row : picks[row]; }
};

// Rotates the new rows, stores their keys and values, and leaves queries behind for `attend`.
struct Intake {
  const float *q, *k, *v;  // first row of each, or null: queries, or keys and values, are not taken in
  size_t q_stride, k_stride, v_stride;
  const float *cosines, *sines;  // [positions, rotary / 2] or null: positions are not encoded
  const int64_t* positions;      // [rows]
  size_t rotary;                 // how many values of a head are rotated, pairs (i, i + rotary / 2)
  bool interleaved;              // pairs (2 i, 2 i + 1) instead
  float scale;
  const float *key_scales, *value_scales;  // int8: [kv_heads, size]
  float* queries;                          // [rows, heads, size]
};

struct Norm {
  const float *x, *skip, *weight;  // skip: null or added first
  float *y, *sum;                  // sum: null or x + skip
  size_t rows, columns;
  float epsilon;
};

// y[rows, channels]: each channel's last `count` inputs by its weights, the oldest first, + bias, * gate.
struct Convolution {
  const float* const* before;  // [rows, count - 1]: the inputs of the rows before each row, the oldest first
  const float *x, *gate;       // [rows, channels]; gate: one row every `gate_stride` floats
  const float *weights, *bias;  // [count, channels]; [channels] or null
  float* y;
  size_t channels, count, gate_stride;
};

enum class Pointwise : int { kSigmoid = 0, kSilu = 1, kGeluTanh = 2, kTanh = 3 };

// What `delta_heads` reads and writes: rows of a recurrence, whose state S is a matrix [key_size, value_size] of each head.
// With rates, of the gated delta rule: S = f S (I - r k k') + r v k', where q and k have unit length; without, of Mamba-2:
// S = f S + s v k'. Each row's result is S q. The first `applied` rows go into the state, each behind the one before it.
struct Recurrence {
  const float* const* taps;   // [rows, width]: a row's inputs of the convolution, the oldest first
  const float* const* steps;  // [rows]: of each head; s = softplus(step + step_bias), f = exp(decay * s)
  const float* const* rates;  // [rows] or null: r = sigmoid(rate)
  const int32_t* parents;     // [rows]: a row before it; below `applied`, the state after those
  size_t rows, applied, own;  // rows from `own` on have results
  const float *weight, *bias;       // of the convolution: [width, channels]; [channels] or null
  const float *decay, *step_bias;   // [heads]
  const float *skip, *norm;         // [heads] or null: skip * v is added; [value_size] or null: weights of an RMS norm
  const float* z;                   // [rows - own, heads, value_size]: silu(z) multiplies the result
  float *fades, *shares;            // [rows, heads]
  float* state;                     // [heads, value_size / 32, key_size, 32]; the last tile may have 16 values
  float* y;                         // [rows - own, heads, value_size]
  size_t width, channels, heads, key_heads, key_size, value_size;
  size_t query_at, key_at, value_at;  // channels
  bool interleaved;                   // head h has the keys of h modulo key_heads, instead of its neighbours'
  float scale, epsilon;               // of queries, of the norm
};

struct Kernels {
  const char* name;
  void (*round_rows)(const float* x, size_t columns, size_t first, size_t last, const Rounded& out);
  void (*product_tiles)(const Product& job, size_t first, size_t last);
  void (*take_in)(const Intake& in, const Attention& job, size_t first, size_t last);
  void (*attend)(const Attention& job, size_t kv_head, size_t first, size_t last, float* scores);
  void (*norm_rows)(const Norm& job, size_t first, size_t last);
  void (*pointwise)(Pointwise kind, const float* x, float* y, size_t count);
  void (*float_product)(const FloatProduct& job, size_t first, size_t last);  // columns first to last - 1
  void (*convolve)(const Convolution& job, size_t first, size_t last);        // rows first to last - 1
  void (*delta_gates)(const Recurrence& job, size_t first, size_t last);
  void (*delta_heads)(const Recurrence& job, size_t first, size_t last, float* scratch);
};

// Rows of a head that are in work at once: all that may be undone, and as many before them.
inline size_t delta_rows(const Recurrence& job) { return job.rows < 2 * kMostKept ? job.rows : 2 * kMostKept; }

// Floats that `delta_heads` needs as scratch memory: queries, keys and values of rows, and a tile of the state.
inline size_t delta_floats(const Recurrence& job) {
  return delta_rows(job) * (2 * job.key_size + job.value_size + 1) + kTile + 2 * kTile * job.key_size;
}

// Floats of one query's scores: a whole number of tiles.
inline size_t score_stride(const Attention& job) { return (job.settled + job.pending + kTile) / kTile * kTile; }

// Floats that `attend` needs as scratch memory: scores and sums of values; for a tree paths, the slots' owners, and the
// queries side by side, of at most 31 rows.
inline size_t score_floats(const Attention& job) {
  const size_t tree = job.parents == nullptr ? 0 : kQueries * (job.pending + 2 * job.size) + job.pending + 3 * kTile;
  return kQueries * (score_stride(job) + job.size) + tree;
}

// The tables; null where the compiler could not make one.
const Kernels* kernels_avx512();
const Kernels* kernels_avxvnni();
const Kernels* kernels_avx2();
const Kernels* kernels_neon();
const Kernels* kernels_i8mm();
const Kernels* kernels_generic();

// Returns the table in force: the best this processor has, or the one that `choose_kernels` has forced.
const Kernels* kernels();
const Kernels* kernels_named(const char* name);  // null: unknown, or this processor does not have it
bool choose_kernels(const char* name);

// While it lives this thread rounds to nearest and keeps denormals, whatever the program or another library has told it:
// results do not depend on the thread that computes them.
class FloatMode {
 public:
  FloatMode() : before_(read()) { if (before_ & kChanged) write(before_ & ~kChanged); }
  ~FloatMode() { if (before_ & kChanged) write(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__) || defined(_M_X64)
  static constexpr uint64_t kChanged = 0xe040;  // flush to zero, rounding, denormals are zeros
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kChanged = 0x3c00000;  // default NaN, flush to zero, rounding
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
  static constexpr uint64_t kChanged = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif
  uint64_t before_;
};

// Runs part 0 to parts - 1 on the calling thread and up to threads - 1 others. Parts may run in any order.
void parallel(size_t parts, int threads, void (*run)(void* data, size_t part), void* data);

// Calls body(part) for each part.
template <class Body>
void parallel_for(size_t parts, int threads, const Body& body) {
  struct Call {
    static void run(void* data, size_t part) { (*static_cast<const Body*>(data))(part); }
  };
  parallel(parts, threads, &Call::run, const_cast<Body*>(&body));
}

}  // namespace edgedecode
