// From a row of logits to a token: arg-max, its share, and the draw by noise per id, each in a few passes over the row.
//
// The algorithm is defined in edgedecode/row_draw.py, and both give the same token for the same row, options and key:
// - float operations are single, in the order written here (no fused multiply-add, no reassociation: compile with
//   -ffp-contract=off and without -ffast-math);
// - sums are of integers, so that their order does not matter;
// - the noise is a 64-bit hash, and the logarithm is made of the same operations on both sides.
// Loops go over blocks of 64 elements without branches: the compiler vectorises them for each instruction set below.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "fp-contract=off")
#elif defined(__clang__)
#pragma clang fp contract(off)
#endif

#define INLINE static inline __attribute__((always_inline))

namespace {

constexpr int64_t SMALL_BLOCK = 16;
constexpr int64_t BLOCK = 64;
constexpr int64_t WIDE_BLOCK = 1024;
constexpr uint32_t BINS = 2048;
constexpr int64_t NOT_NUMBERS = -1;
constexpr float LEAST_EXPONENT = -125.0f;  // weights below 2^-125 are 0: no result is subnormal
constexpr float ROUNDER = 0x1.8p23f;       // adding it rounds to an integer, in the low bits
constexpr double MASS_ROUNDER = 0x1.8p52;
constexpr double MASS_UNIT = 0x1p40;       // a mass is a weight in units of 2^-40
constexpr uint64_t STEP = 0x9E3779B97F4A7C15u;

template <class To, class From>
INLINE To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "a cast keeps the size");
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// Order-preserving: a < b as floats implies sortable(a) < sortable(b); -0 comes before +0, NaN at either end.
INLINE int32_t sortable(float value) {
    const int32_t bits = bits_as<int32_t>(value);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

INLINE float unsortable(int32_t key) { return bits_as<float>(key ^ ((key >> 31) & 0x7FFFFFFF)); }

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// -- weights and masses ------------------------------------------------------------------------------------------------

// 2^((x - top) * scale) for x <= top, within 1.0e-7 of it for the rounded exponent; 0 below 2^-125.
INLINE float weight_of(float x, float top, float scale) {
    const float exponent = (x - top) * scale;
    const uint32_t there = 0u - static_cast<uint32_t>(exponent >= LEAST_EXPONENT);  // masks: selections of floats may trap
    const float held = bits_as<float>(bits_as<uint32_t>(exponent) & there);
    const float rounded = held + ROUNDER;
    const float f = held - (rounded - ROUNDER);
    float p = 0x1.444004p-13f;
    p = p * f + 0x1.5f0896p-10f;
    p = p * f + 0x1.3b2a1cp-7f;
    p = p * f + 0x1.c6af6cp-5f;
    p = p * f + 0x1.ebfbe0p-3f;
    p = p * f + 0x1.62e430p-1f;
    p = p * f + 1.0f;
    const uint32_t shift = (bits_as<uint32_t>(rounded) - bits_as<uint32_t>(ROUNDER)) << 23;
    return bits_as<float>((bits_as<uint32_t>(p) + shift) & there);
}

// The weight in units of 2^-40, to the nearest, ties to even.
INLINE uint64_t mass_of(float weight) {
    return bits_as<uint64_t>(static_cast<double>(weight) * MASS_UNIT + MASS_ROUNDER) - bits_as<uint64_t>(MASS_ROUNDER);
}

// The weights of a block; 0 for logits below `least`.
INLINE void weigh_block(const float* logits, int64_t size, float top, float scale, float least, float* __restrict made) {
    for (int64_t i = 0; i < size; ++i) {
        const uint32_t kept = 0u - static_cast<uint32_t>(logits[i] >= least);
        made[i] = bits_as<float>(bits_as<uint32_t>(weight_of(logits[i], top, scale)) & kept);
    }
}

// `weights` may be the logits' own memory.
INLINE void weigh(const float* logits, int64_t count, float top, float scale, float least, float* weights) {
    float made[BLOCK];
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = smaller(BLOCK, count - start);
        weigh_block(logits + start, size, top, scale, least, made);
        std::memcpy(weights + start, made, size * sizeof(float));
    }
}

INLINE uint64_t total_mass(const float* weights, int64_t count) {
    uint64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += mass_of(weights[i]);
    return total;
}

// -- the largest -------------------------------------------------------------------------------------------------------

struct Scan {
    int32_t key;  // of the largest logit
    int64_t index;
    bool damaged;  // a NaN was met
};

template <int64_t WIDTH>
INLINE Scan scan(const float* logits, int64_t count, float* maxima) {
    int32_t best = INT32_MIN, damaged = 0;
    int64_t best_block = 0;
    for (int64_t start = 0; start < count; start += WIDTH) {
        int32_t most = INT32_MIN;
        const int64_t end = smaller(start + WIDTH, count);
        if (end - start == WIDTH) {
            for (int64_t i = 0; i < WIDTH; ++i) {
                const float x = logits[start + i];
                const int32_t key = sortable(x);
                most = key > most ? key : most;
                damaged |= x != x;
            }
        } else {
            for (int64_t i = start; i < end; ++i) {
                const int32_t key = sortable(logits[i]);
                most = key > most ? key : most;
                damaged |= logits[i] != logits[i];
            }
        }
        if (maxima != nullptr) maxima[start / WIDTH] = unsortable(most);
        // Compared as floats, so that of -0 and +0 the first is taken, as numpy does.
        if (start == 0 || unsortable(most) > unsortable(best)) best = most, best_block = start;
    }
    const float top = unsortable(best);
    int64_t index = best_block;
    while (!damaged && !(logits[index] == top)) ++index;
    return {best, index, damaged != 0};
}

// -- the cut: the largest value v such that the values >= v have a mass that is enough ---------------------------------

enum Measure { NUMBER, MASS };

INLINE uint32_t bin_of(int32_t key, int32_t top, unsigned shift) {
    const uint32_t below = (static_cast<uint32_t>(top) - static_cast<uint32_t>(key)) >> shift;
    return below < BINS - 1 ? below : BINS - 1;
}

INLINE unsigned shift_for(int32_t low, int32_t top) {
    const uint32_t range = static_cast<uint32_t>(top) - static_cast<uint32_t>(low);
    unsigned shift = 0;
    while ((range >> shift) >= BINS) ++shift;
    return shift;
}

// Two histograms, taken in turn: equal neighbours would wait for each other's addition.
template <Measure MEASURE>
INLINE void fill_bins(const float* values, int64_t count, int32_t low, int32_t top, unsigned shift, uint64_t* bins) {
    std::memset(bins, 0, 2 * BINS * sizeof(uint64_t));
    uint64_t masses[BLOCK];
    uint32_t places[BLOCK];
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = smaller(BLOCK, count - start);
        const float* block = values + start;
        int32_t any = 0;
        for (int64_t i = 0; i < size; ++i) any |= sortable(block[i]) >= low;
        if (!any) continue;
        for (int64_t i = 0; i < size; ++i) places[i] = 2 * bin_of(sortable(block[i]), top, shift) + (i & 1);
        for (int64_t i = 0; i < size; ++i) masses[i] = MEASURE == MASS ? mass_of(block[i]) : 1;
        for (int64_t i = 0; i < size; ++i) bins[places[i]] += masses[i];
    }
}

// Copy the values of a bin, not below `low`; the two keys become those of the least and the largest of them.
INLINE int64_t take_bin(const float* values, int64_t count, uint32_t bin, unsigned shift, int32_t* low, int32_t* top,
                        float* taken) {
    int32_t least_key = INT32_MAX, most_key = INT32_MIN;
    int64_t found = 0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = smaller(BLOCK, count - start);
        const float* block = values + start;
        int32_t any = 0;
        for (int64_t i = 0; i < size; ++i) any |= bin_of(sortable(block[i]), *top, shift) == bin;
        if (!any) continue;
        for (int64_t i = 0; i < size; ++i) {
            const float value = block[i];
            const int32_t key = sortable(value);
            taken[found] = value;
            found += (key >= *low) & (bin_of(key, *top, shift) == bin);
        }
    }
    for (int64_t i = 0; i < found; ++i) {
        const int32_t key = sortable(taken[i]);
        least_key = key < least_key ? key : least_key;
        most_key = key > most_key ? key : most_key;
    }
    *low = least_key;
    *top = most_key;
    return found;
}

// `low`: the answer is not below it. `top`: no value is above it. All of the values hold a mass of at least `enough`.
template <Measure MEASURE>
INLINE float cut(const float* values, int64_t count, uint64_t enough, float low, float top, float* spare,
                 uint64_t* bins) {
    int32_t low_key = sortable(low), top_key = sortable(top);
    while (count > 1 && low_key != top_key) {
        const unsigned shift = shift_for(low_key, top_key);
        fill_bins<MEASURE>(values, count, low_key, top_key, shift, bins);
        uint32_t bin = 0;
        while (bin < BINS - 1 && bins[2 * bin] + bins[2 * bin + 1] < enough) {
            enough -= bins[2 * bin] + bins[2 * bin + 1];
            ++bin;
        }
        count = take_bin(values, count, bin, shift, &low_key, &top_key, spare);
        values = spare;  // a later bin is taken in place
    }
    return unsortable(top_key);
}

// -- the race of the noise ---------------------------------------------------------------------------------------------

INLINE uint64_t hashed(uint64_t state) {  // splitmix64's output for a state that was stepped
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

// The natural logarithm of a normal number, after e_log.c of FreeBSD's msun (Sun Microsystems, 1993).
INLINE double logarithm(double x) {
    uint64_t bits = bits_as<uint64_t>(x);
    int64_t exponent = static_cast<int64_t>(bits >> 52) - 1022;
    double m = bits_as<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FE0000000000000u);  // in [0.5, 1)
    if (m < 0.70710678118654752440) m = m + m, exponent -= 1;
    const double k = static_cast<double>(exponent), f = m - 1.0, s = f / (2.0 + f), z = s * s, w = z * z;
    const double odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double even = z * (6.666666666666735130e-01 +
                             w * (2.857142874366239149e-01 +
                                  w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double r = even + odd, half = 0.5 * f * f;
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + r) + k * 1.90821492927058770002e-10)) - f);
}

INLINE double exponential(uint64_t hash) {
    return -logarithm((static_cast<double>(hash >> 12) + 0.5) * 0x1p-52);
}

// An exponential is above 1 - u, whose first 24 bits are cheap: only ids that may arrive first by that are looked at.
INLINE int64_t race(const float* weights, const int64_t* ids, int64_t count, float floor, uint64_t key) {
    double first = INFINITY;
    float limit = INFINITY;
    int64_t winner = 0;
    const uint64_t state = key + STEP;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = smaller(BLOCK, count - start);
        const float* block = weights + start;
        int32_t any = 0;
        for (int64_t i = 0; i < size; ++i) any |= block[i] >= floor;
        if (!any) continue;
        uint64_t hashes[BLOCK];
        if (ids == nullptr) {
            for (int64_t i = 0; i < size; ++i) hashes[i] = hashed(state + static_cast<uint64_t>(start + i) * STEP);
        } else {
            for (int64_t i = 0; i < size; ++i) hashes[i] = hashed(state + static_cast<uint64_t>(ids[start + i]) * STEP);
        }
        int32_t near[BLOCK];
        any = 0;
        for (int64_t i = 0; i < size; ++i) {
            const float bound = static_cast<float>(static_cast<int32_t>(~hashes[i] >> 40)) * 0x1p-24f;
            near[i] = (block[i] >= floor) & (bound <= limit * block[i]);  // 0 * infinity: false
            any |= near[i];
        }
        if (!any) continue;
        for (int64_t i = 0; i < size; ++i) {
            if (!near[i] || !(block[i] > 0.0f)) continue;
            const double arrival = exponential(hashes[i]) / static_cast<double>(block[i]);
            if (arrival < first) {
                first = arrival;
                winner = start + i;
                limit = static_cast<float>(arrival * (1.0 + 0x1p-20));
            }
        }
    }
    return ids == nullptr ? winner : ids[winner];
}

// -- a whole row -------------------------------------------------------------------------------------------------------

struct Options {
    float scale;  // of the exponent of 2: log2(e) / temperature; 0: greedy
    int64_t top_k;
    double top_p;
    float min_p, penalty;
};

struct Scratch {
    float *values, *spare;
    int64_t* ids;
    uint64_t* bins;
};

INLINE Scratch scratch_at(void* memory, int64_t size) {
    char* next = static_cast<char*>(memory);
    Scratch scratch;
    scratch.bins = reinterpret_cast<uint64_t*>(next);
    next += 2 * BINS * sizeof(uint64_t);
    scratch.ids = reinterpret_cast<int64_t*>(next);
    next += size * sizeof(int64_t);
    scratch.values = reinterpret_cast<float*>(next);
    next += size * sizeof(float);
    scratch.spare = reinterpret_cast<float*>(next);
    return scratch;
}

// Gather the logits that are at least the k-th largest, with their ids, and return how many there are. The k-th largest
// of all is not below that of the blocks' maxima, which the scan left in the spare memory; k is at most their number.
template <int64_t WIDTH>
INLINE int64_t gather_largest(const float* logits, const int64_t* ids, int64_t count, int64_t k, float top,
                              const Scratch& scratch) {
    const int64_t blocks = (count + WIDTH - 1) / WIDTH;
    const float* maxima = scratch.spare;
    const float low = cut<NUMBER>(maxima, blocks, k, -INFINITY, top, scratch.spare + blocks, scratch.bins);
    int64_t found = 0;
    for (int64_t block = 0; block < blocks; ++block) {
        if (maxima[block] < low) continue;
        for (int64_t i = block * WIDTH; i < smaller((block + 1) * WIDTH, count); ++i) {
            const float value = logits[i];  // perhaps the scratch's own: what is written was read
            scratch.values[found] = value;
            scratch.ids[found] = ids == nullptr ? i : ids[i];
            found += value >= low;
        }
    }
    const float last = cut<NUMBER>(scratch.values, found, k, low, top, scratch.spare, scratch.bins);
    int64_t kept = 0;
    for (int64_t i = 0; i < found; ++i) {
        const float value = scratch.values[i];
        scratch.values[kept] = value;
        scratch.ids[kept] = scratch.ids[i];
        kept += value >= last;
    }
    return kept;
}

INLINE float nucleus_floor(int64_t count, double top_p, const Scratch& scratch) {
    const uint64_t total = total_mass(scratch.values, count);
    uint64_t enough = static_cast<uint64_t>(top_p * static_cast<double>(total));
    if (enough < 1) enough = 1;
    // Weights below an even share of what may be left out are, together, less than that.
    const double share = static_cast<double>(total - enough) / static_cast<double>(count) / MASS_UNIT;
    const float low = static_cast<float>(share * (1.0 - 0x1p-20) - 0x1p-40);
    return cut<MASS>(scratch.values, count, enough, low > 0.0f ? low : 0.0f, 1.0f, scratch.spare, scratch.bins);
}

INLINE const float* penalised(const float* row, int64_t size, const int64_t* seen, int64_t seen_count, float penalty,
                              float* result) {
    std::memcpy(result, row, size * sizeof(float));
    for (int64_t i = 0; i < seen_count; ++i) {  // from the row: an id that is named twice counts once
        const float value = row[seen[i]];
        result[seen[i]] = value > 0.0f ? value / penalty : value * penalty;
    }
    return result;
}

INLINE int64_t draw_row(const float* row, const int64_t* ids, int64_t size, const Options& options, const int64_t* seen,
                        int64_t seen_count, uint64_t key, void* memory) {
    const Scratch scratch = scratch_at(memory, size);
    const float* logits = row;
    if (options.penalty != 1.0f) logits = penalised(row, size, seen, seen_count, options.penalty, scratch.values);
    if (options.scale == 0.0f) {
        const Scan best = scan<WIDE_BLOCK>(logits, size, nullptr);
        return best.damaged ? NOT_NUMBERS : ids == nullptr ? best.index : ids[best.index];
    }
    const int64_t k = options.top_k;
    const bool few = 0 < k && k <= size / BLOCK, some = 0 < k && k <= size / SMALL_BLOCK;
    const Scan best = few    ? scan<BLOCK>(logits, size, scratch.spare)
                      : some ? scan<SMALL_BLOCK>(logits, size, scratch.spare)
                             : scan<WIDE_BLOCK>(logits, size, nullptr);
    const float top = unsortable(best.key);
    if (best.damaged || std::isinf(top)) return NOT_NUMBERS;
    int64_t count = size;
    float last = -INFINITY;
    if (some) {
        count = few ? gather_largest<BLOCK>(logits, ids, size, k, top, scratch)
                    : gather_largest<SMALL_BLOCK>(logits, ids, size, k, top, scratch);
        logits = scratch.values;
        ids = scratch.ids;
    } else if (0 < k && k < size) {
        last = cut<NUMBER>(logits, size, k, -INFINITY, top, scratch.spare, scratch.bins);
    }
    weigh(logits, count, top, options.scale, last, scratch.values);
    float floor = options.min_p;
    if (options.top_p < 1.0) {
        const float nucleus = nucleus_floor(count, options.top_p, scratch);
        floor = nucleus > floor ? nucleus : floor;
    }
    return race(scratch.values, ids, count, floor, key);
}

struct Rest {
    uint64_t mass;
    int32_t key;
};

INLINE Rest rest_of(const float* logits, int64_t count, float top, float scale) {
    uint64_t mass = 0;
    int32_t most = INT32_MIN;
    float weights[BLOCK];
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = smaller(BLOCK, count - start);
        weigh_block(logits + start, size, top, scale, -INFINITY, weights);
        mass += total_mass(weights, size);
        for (int64_t i = 0; i < size; ++i) {
            const int32_t key = sortable(logits[start + i]);
            most = key > most ? key : most;
        }
    }
    return {mass, most};
}

// found[0]: the mass of the others over that of the best; found[1]: its margin to the second largest.
INLINE int64_t leading_of(const float* row, int64_t size, double* found) {
    const Scan best = scan<WIDE_BLOCK>(row, size, nullptr);
    const float top = unsortable(best.key);
    if (best.damaged || std::isinf(top)) return NOT_NUMBERS;
    const float scale = 1.44269504088896340736f;
    const Rest before = rest_of(row, best.index, top, scale);
    const Rest after = rest_of(row + best.index + 1, size - best.index - 1, top, scale);
    const int32_t second = before.key > after.key ? before.key : after.key;
    found[0] = static_cast<double>(before.mass + after.mass) / MASS_UNIT;
    found[1] = second == INT32_MIN ? INFINITY : static_cast<double>(top) - static_cast<double>(unsortable(second));
    return best.index;
}

INLINE int64_t argmax_of(const float* row, int64_t size) {
    const Scan best = scan<WIDE_BLOCK>(row, size, nullptr);
    return best.damaged ? NOT_NUMBERS : best.index;
}

// -- one copy for each instruction set ---------------------------------------------------------------------------------

#define COPY(NAME, TARGET)                                                                                             \
    TARGET int64_t draw_##NAME(const float* row, const int64_t* ids, int64_t size, const Options& options,             \
                               const int64_t* seen, int64_t seen_count, uint64_t key, void* memory) {                  \
        return draw_row(row, ids, size, options, seen, seen_count, key, memory);                                       \
    }                                                                                                                  \
    TARGET int64_t leading_##NAME(const float* row, int64_t size, double* found) {                                     \
        return leading_of(row, size, found);                                                                           \
    }                                                                                                                  \
    TARGET int64_t argmax_##NAME(const float* row, int64_t size) { return argmax_of(row, size); }

enum Isa { PLAIN, AVX2, AVX512 };

COPY(plain, )
#if defined(__x86_64__)
#if defined(__clang__)
#define WIDE "avx512f,avx512dq,avx512bw,avx512vl"
#else
#define WIDE "avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"
#endif
COPY(avx2, __attribute__((target("avx2"))))
COPY(avx512, __attribute__((target(WIDE))))
#define CALL(FUNCTION, ...)                                                                                            \
    (chosen == AVX512 ? FUNCTION##_avx512(__VA_ARGS__)                                                                 \
     : chosen == AVX2 ? FUNCTION##_avx2(__VA_ARGS__)                                                                   \
                      : FUNCTION##_plain(__VA_ARGS__))

bool offers(Isa isa) {
    __builtin_cpu_init();  // asked when the library is loaded: its own initialisation may come later
    if (isa == AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return isa == PLAIN || __builtin_cpu_supports("avx2");
}
#else
#define CALL(FUNCTION, ...) FUNCTION##_plain(__VA_ARGS__)

bool offers(Isa isa) { return isa == PLAIN; }
#endif

Isa best_isa() { return offers(AVX512) ? AVX512 : offers(AVX2) ? AVX2 : PLAIN; }

Isa chosen = best_isa();

}  // namespace

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
extern "C" {

// Uses "avx512", "avx2" or "plain" from now on, in all threads; "" chooses by itself. 0: this processor has it not.
int edgedecode_draw_force(const char* name) {
    const Isa isa = !std::strcmp(name, "avx512") ? AVX512 : !std::strcmp(name, "avx2") ? AVX2 : PLAIN;
    if (*name != '\0' && isa == PLAIN && std::strcmp(name, "plain") != 0) return 0;
    if (!offers(isa)) return 0;
    chosen = *name == '\0' ? best_isa() : isa;
    return 1;
}

// Bytes of scratch memory, aligned to 8, that drawing from a row of this size takes.
int64_t edgedecode_draw_scratch(int64_t size) {
    return 2 * BINS * sizeof(uint64_t) + size * (sizeof(int64_t) + 2 * sizeof(float)) + 4 * BLOCK;
}

// The first of the largest, or -1 where one is NaN.
int64_t edgedecode_argmax_row(const float* row, int64_t size) { return CALL(argmax, row, size); }

// The arg-max, in found[0] the sum of e^(x - largest) over the others, in found[1] the largest less the second largest;
// -1 where one is NaN or the largest is infinite.
int64_t edgedecode_leading_row(const float* row, int64_t size, double* found) {
    return CALL(leading, row, size, found);
}

// Draw from row[size]. ids: the id of each element, ascending; null: its index. seen: elements that the penalty counts.
// scale: log2(e) / temperature, 0 for the arg-max. Returns an id, or -1 where a logit is NaN or, unless greedy, the
// largest is infinite.
int64_t edgedecode_draw_row(const float* row, const int64_t* ids, int64_t size, float scale, int64_t top_k,
                            double top_p, float min_p, float penalty, const int64_t* seen, int64_t seen_count,
                            uint64_t key, void* scratch) {
    const Options options = {scale, top_k, top_p, min_p, penalty};
    return CALL(draw, row, ids, size, options, seen, seen_count, key, scratch);
}
}
