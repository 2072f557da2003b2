// Samples a token from a row of logits: arg-max, its share, and a draw with noise per id, each in a few passes over the row.
//
// The algorithm is defined in edgedecode/sampling/row_draw.py. Both give the same token for the same row, options and key:
// - float operations are separate, in the order written here (no fused multiply-add, no reassociation: compile with
//   -ffp-contract=off and without -ffast-math);
// - sums are over integers, so that their order does not matter;
// - the noise is a 64-bit hash, and both compute the logarithm with the same operations.
// Loops go over blocks of 64 elements without branches: the compiler vectorises them for each instruction set below.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
// A block has many independent chains of operations; scheduling must interleave them.
#pragma GCC optimize("O3", "fp-contract=off", "schedule-insns", "sched-pressure")
#elif defined(__clang__)
#pragma clang fp contract(off)
#endif

#include "kernels.h"

#define INLINE EDGE_INLINE
#if defined(_MSC_VER)
#define NEVER_INLINE __declspec(noinline)
#else
#define NEVER_INLINE __attribute__((noinline))
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define TARGET_AVX2 __attribute__((target("avx2,popcnt")))
#if defined(__clang__)
#define TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#else
#define TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")))
#endif
#endif

namespace {

constexpr int64_t BLOCK = 64;
constexpr int64_t WIDE_BLOCK = 1024;
constexpr int64_t PADDING = 16;  // stores always write a full vector
constexpr int64_t SAMPLE = 1024, FEW = 2048;
constexpr int64_t MOST_TOP = 64, TOP_BLOCK = 64;
constexpr int64_t NOT_NUMBERS = -1;
constexpr float LEAST_EXPONENT = -125.0f;  // weights below 2^-125 are 0: no result is subnormal
constexpr float LEAST_WEIGHT = 0x1p-126f;     // below every weight except 0
constexpr float ROUNDER = 0x1.8p23f;       // adding it rounds to an integer, in the low bits
constexpr double MASS_UNIT = 0x1p40;       // a mass is a weight in units of 2^-40
constexpr double MASS_ROUNDER = 0x1.8p12;  // adding it rounds to that unit, in the low bits
constexpr float NO_MASS = 0x1p-41f;       // weights up to this have mass 0
constexpr uint64_t STEP = 0x9E3779B97F4A7C15u;

enum Isa { PLAIN, AVX2, AVX512 };

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

INLINE uint64_t nearly_hashed(uint64_t state) {  // its first 31 bits equal those of `hashed`
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    return (state ^ (state >> 27)) * 0x94D049BB133111EBu;
}

INLINE uint64_t hashed(uint64_t state) {  // splitmix64's output for an advanced state
    state = nearly_hashed(state);
    return state ^ (state >> 31);
}

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
INLINE uint64_t mass_from_zero(float weight) { return bits_as<uint64_t>(static_cast<double>(weight) + MASS_ROUNDER); }

constexpr uint64_t MASS_ZERO = 0x40B8000000000000u;  // mass_from_zero(0): MASS_ROUNDER's bits

INLINE uint64_t mass_of(float weight) { return mass_from_zero(weight) - MASS_ZERO; }

// The weights of a block; 0 for logits below `least`.
INLINE void weigh_block(const float* logits, int64_t size, float top, float scale, float least, float* __restrict made) {
    for (int64_t i = 0; i < size; ++i) {
        const uint32_t kept = 0u - static_cast<uint32_t>(logits[i] >= least);
        made[i] = bits_as<float>(bits_as<uint32_t>(weight_of(logits[i], top, scale)) & kept);
    }
}

INLINE uint64_t total_mass(const float* weights, int64_t count) {
    uint64_t total = 0 - static_cast<uint64_t>(count) * MASS_ZERO;
    for (int64_t i = 0; i < count; ++i) total += mass_from_zero(weights[i]);
    return total;
}

// Writes the weights and returns their mass. `weights` may be the same memory as `logits`.
INLINE uint64_t weigh(const float* logits, int64_t count, float top, float scale, float least, float* weights) {
    uint64_t mass = 0;
    float made[BLOCK];
    int64_t start = 0;
    for (; start + BLOCK <= count; start += BLOCK) {
        int32_t any = 0;
        for (int64_t i = 0; i < BLOCK; ++i) any |= logits[start + i] >= least;
        if (any) {
            weigh_block(logits + start, BLOCK, top, scale, least, made);
            mass += total_mass(made, BLOCK);
            std::memcpy(weights + start, made, sizeof made);
        } else {
            std::memset(weights + start, 0, sizeof made);
        }
    }
    weigh_block(logits + start, count - start, top, scale, least, made);
    std::memcpy(weights + start, made, (count - start) * sizeof(float));
    return mass + total_mass(made, count - start);
}

// -- the largest -------------------------------------------------------------------------------------------------------

struct Scan {
    float top;  // the largest logit
    int64_t index;
    bool damaged;  // there is a NaN
};

INLINE Scan scan(const float* logits, int64_t count) {
    int32_t best = INT32_MIN, damaged = 0;
    int64_t best_block = 0;
    for (int64_t start = 0; start < count; start += WIDE_BLOCK) {
        int32_t most = INT32_MIN;
        const int64_t size = smaller(WIDE_BLOCK, count - start);
        for (int64_t i = 0; i < size; ++i) {
            const float x = logits[start + i];
            const int32_t key = sortable(x);
            most = key > most ? key : most;
            damaged |= x != x;
        }
        // Compared as floats, so that the first of -0 and +0 is taken, as in numpy.
        if (start == 0 || unsortable(most) > unsortable(best)) best = most, best_block = start;
    }
    const float top = unsortable(best);
    int64_t index = best_block;
    while (!damaged && !(logits[index] == top)) ++index;
    return {top, index, damaged != 0};
}

// -- the cut: the largest value v such that the values >= v are enough, by number or by mass ---------------------------
//
// A sample predicts two bounds of v, nearly always correctly. One pass measures the values above the bounds, and copies
// the few between them. Values equal to a bound are only counted, so ties are never copied.

enum Measure { NUMBER, MASS };

template <Measure MEASURE>
INLINE uint64_t measure_of(float value) {
    return MEASURE == MASS ? mass_of(value) : 1;
}

struct Range {
    float low, high;
};

INLINE uint64_t at_least_one(double number) { return number < 1.0 ? 1 : static_cast<uint64_t>(number); }

// The cut of few values, by bisecting the range of keys. Returns the range's lower end if all values are not enough.
template <Measure MEASURE>
INLINE float cut_of_few(const float* values, int64_t count, uint64_t enough, Range known) {
    uint64_t measures[FEW];
    for (int64_t i = 0; i < count; ++i) measures[i] = measure_of<MEASURE>(values[i]);
    int64_t least = sortable(known.low), most = sortable(known.high);
    while (least < most) {
        const int64_t middle = least + (most - least + 1) / 2;
        const float value = unsortable(static_cast<int32_t>(middle));
        uint64_t found = 0;
        uint32_t number = 0;  // narrow sums are faster
        if (MEASURE == NUMBER) {
            for (int64_t i = 0; i < count; ++i) number += values[i] >= value;
        } else {
            for (int64_t i = 0; i < count; ++i) found += measures[i] & (0 - static_cast<uint64_t>(values[i] >= value));
        }
        if (found + number >= enough) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    return unsortable(static_cast<int32_t>(least));
}

// The likely range of the cut. `left`: upper bound of the measure of the values below the cut.
template <Measure MEASURE>
INLINE Range likely_range(const float* values, int64_t count, uint64_t left, Range known) {
    float sample[SAMPLE];
    for (int64_t i = 0; i < SAMPLE; ++i) {  // one value from each of SAMPLE equal sections, at a hashed position
        const uint64_t place = static_cast<uint64_t>(i) << 16 | hashed(static_cast<uint64_t>(i) * STEP) >> 48;
        sample[i] = values[place * static_cast<uint64_t>(count) / (SAMPLE << 16)];
    }
    uint64_t whole = 0;
    for (int64_t i = 0; i < SAMPLE; ++i) whole += measure_of<MEASURE>(sample[i]);
    const double share = static_cast<double>(left) / static_cast<double>(count), below = share * SAMPLE;
    const double kept = static_cast<double>(whole) > below ? static_cast<double>(whole) - below : 0.0;
    const float centre = cut_of_few<MEASURE>(sample, SAMPLE, at_least_one(kept), known);
    // Four standard deviations of the sample's measure below the cut, where no value measures more than the centre.
    const double unit = static_cast<double>(measure_of<MEASURE>(centre));
    const double spread = 4.0 * (unit + std::sqrt(below * (unit > share ? unit - share : 0.0)));
    Range likely = known;
    if (kept > spread)
        likely.high = cut_of_few<MEASURE>(sample, SAMPLE, at_least_one(kept - spread), {centre, known.high});
    if (kept + spread < static_cast<double>(whole))
        likely.low = cut_of_few<MEASURE>(sample, SAMPLE, at_least_one(kept + spread), {known.low, centre});
    int32_t inside = 0;
    for (int64_t i = 0; i < SAMPLE; ++i) inside += (sample[i] > likely.low) & (sample[i] < likely.high);
    return inside > SAMPLE / 2 ? Range{centre, centre} : likely;
}

struct Split {
    uint64_t above;           // measure of the values above the range
    int64_t at_high, at_low;  // number of values equal to its ends, each counted once
    int64_t taken;            // number of values between
};

// Adds a block's counts, and copies the values inside the range.
template <Isa>
INLINE int64_t split_block(const float* block, int64_t size, Range range, Split* split, float* taken) {
    uint32_t counts = 0, inside[BLOCK];  // four counts of 8 bits each: one sum is faster than four
    for (int64_t i = 0; i < size; ++i) {
        const float x = block[i];
        inside[i] = (x > range.low) & (x < range.high);
        counts += (x > range.high ? 1u : 0u) + (x == range.high ? 1u << 8 : 0u) +
                  ((x == range.low) & (x < range.high) ? 1u << 16 : 0u) + (inside[i] << 24);
    }
    split->at_high += counts >> 8 & 255;
    split->at_low += counts >> 16 & 255;
    float* next = taken + split->taken;
    if (counts >> 24) {
        for (int64_t i = 0; i < size; ++i) {
            *next = block[i];
            next += inside[i];
        }
    }
    split->taken = next - taken;
    return counts & 255;
}

#if defined(__x86_64__)
// The same for a full block; the compiler does not generate the instruction that compresses a vector.
template <>
TARGET_AVX512 inline int64_t split_block<AVX512>(const float* block, int64_t, Range range, Split* split, float* taken) {
    const __m512 high = _mm512_set1_ps(range.high), low = _mm512_set1_ps(range.low);
    int64_t above = 0;
    for (int64_t i = 0; i < BLOCK; i += 16) {
        const __m512 x = _mm512_loadu_ps(block + i);
        const __mmask16 not_above = _mm512_cmp_ps_mask(x, high, _CMP_LE_OQ);
        const __mmask16 below = _mm512_cmp_ps_mask(x, high, _CMP_LT_OQ);
        const __mmask16 inside = _mm512_mask_cmp_ps_mask(below, x, low, _CMP_GT_OQ);
        const __mmask16 at_low = _mm512_mask_cmp_ps_mask(below, x, low, _CMP_EQ_OQ);
        above += 16 - __builtin_popcount(not_above);
        split->at_high += __builtin_popcount(not_above ^ below);
        split->at_low += __builtin_popcount(at_low);
        _mm512_storeu_ps(taken + split->taken, _mm512_maskz_compress_ps(inside, x));
        split->taken += __builtin_popcount(inside);
    }
    return above;
}

// For each set of 8 lanes, the indices of its members: AVX2 has a permutation but no compression.
struct Lanes {
    uint8_t of[256][8];
    constexpr Lanes() : of{} {
        for (int set = 0; set < 256; ++set)
            for (int lane = 0, count = 0; lane < 8; ++lane)
                if (set >> lane & 1) of[set][count++] = static_cast<uint8_t>(lane);
    }
};
constexpr Lanes LANES;

template <>
TARGET_AVX2 inline int64_t split_block<AVX2>(const float* block, int64_t, Range range, Split* split, float* taken) {
    // If the range is a single value, equal values count as its high end only.
    const __m256 high = _mm256_set1_ps(range.high), low = _mm256_set1_ps(range.low < range.high ? range.low : NAN);
    __m256i above = _mm256_setzero_si256(), from_high = above, from_low = above;  // lanes of -1 are added
    float* next = taken + split->taken;
    for (int64_t i = 0; i < BLOCK; i += 8) {
        const __m256 x = _mm256_loadu_ps(block + i), not_below = _mm256_cmp_ps(x, high, _CMP_GE_OQ);
        above = _mm256_add_epi32(above, _mm256_castps_si256(_mm256_cmp_ps(x, high, _CMP_GT_OQ)));
        from_high = _mm256_add_epi32(from_high, _mm256_castps_si256(not_below));
        from_low = _mm256_add_epi32(from_low, _mm256_castps_si256(_mm256_cmp_ps(x, low, _CMP_GE_OQ)));
        const int inside = _mm256_movemask_ps(_mm256_andnot_ps(not_below, _mm256_cmp_ps(x, low, _CMP_GT_OQ)));
        const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(LANES.of[inside]));
        _mm256_storeu_ps(next, _mm256_permutevar8x32_ps(x, _mm256_cvtepu8_epi32(lanes)));
        next += __builtin_popcount(inside);
    }
    // Three counts of up to 64 in one sum.
    __m256i sums = _mm256_add_epi32(above, _mm256_add_epi32(_mm256_slli_epi32(from_high, 8), _mm256_slli_epi32(from_low, 16)));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    sum = _mm_add_epi32(sum, _mm_srli_si128(sum, 8));
    sum = _mm_add_epi32(sum, _mm_srli_si128(sum, 4));
    const uint32_t counts = 0u - static_cast<uint32_t>(_mm_cvtsi128_si32(sum));
    const int64_t found = next - taken - split->taken, at_least_high = counts >> 8 & 255;
    split->at_high += at_least_high - (counts & 255);
    if (range.low < range.high) split->at_low += (counts >> 16) - at_least_high - found;
    split->taken += found;
    return counts & 255;
}
#endif

template <Isa ISA, Measure MEASURE>
INLINE Split split(const float* values, int64_t count, Range range, float* taken) {
    Split result = {0, 0, 0, 0};
    for (int64_t start = 0; start < count; start += BLOCK) {
        const float* block = values + start;
        int64_t above, size = BLOCK;
        if (count - start < BLOCK) {
            size = count - start;
            above = split_block<PLAIN>(block, size, range, &result, taken);
        } else {
            above = split_block<ISA>(block, BLOCK, range, &result, taken);
        }
        if (MEASURE == NUMBER) result.above += above;
        if (MEASURE == MASS && above) {
            float counted[BLOCK];
            for (int64_t i = 0; i < size; ++i)
                counted[i] = bits_as<float>(bits_as<uint32_t>(block[i]) & (0u - static_cast<uint32_t>(block[i] > range.high)));
            result.above += total_mass(counted, size);
        }
    }
    return result;
}

// `known`: contains the cut, ends included; no value is above it. total: measure of all values, at least `enough`.
// spare: memory for twice as many values plus twice PADDING.
template <Isa ISA, Measure MEASURE>
INLINE float cut(const float* values, int64_t count, uint64_t total, uint64_t enough, Range known, float* spare) {
    float* const halves[] = {spare, spare + count + PADDING};
    int half = 0;
    while (count > FEW) {
        Range range = likely_range<MEASURE>(values, count, total - enough, known);
        for (;;) {
            const Split found = split<ISA, MEASURE>(values, count, range, halves[half]);
            const uint64_t high = found.above + found.at_high * measure_of<MEASURE>(range.high);
            if (found.above >= enough) {  // the prediction was wrong: the cut is above
                range = {range.high, known.high};
                continue;
            }
            if (high >= enough) return range.high;
            uint64_t between = 0;
            for (int64_t i = 0; i < found.taken; ++i) between += measure_of<MEASURE>(halves[half][i]);
            if (high + between >= enough) {
                values = halves[half];
                half = 1 - half;
                count = found.taken;
                total = between;
                enough -= high;
                known = range;
                break;
            }
            const uint64_t low = high + between + found.at_low * measure_of<MEASURE>(range.low);
            if (low >= enough || range.low == known.low) return range.low;
            range = {known.low, range.low};
        }
    }
    return cut_of_few<MEASURE>(values, count, enough, known);
}

// -- the race: each id arrives at an exponential time over its weight, and the first one wins --------------------------

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

struct Race {
    double first;    // the winner's arrival time
    float limit;     // an upper bound of it, in units of 2^-24
    int64_t winner;  // its index
};

// Adds a block to the race. `steps`: the key plus each id's step, without `begin`.
INLINE void race_block(const float* block, int64_t size, float floor, const uint64_t* steps, uint64_t begin,
                       int64_t start, Race* race) {
    int32_t any = 0;
    for (int64_t i = 0; i < size; ++i) any += block[i] >= floor;
    if (!any) return;
    // An exponential is above 1 - u, whose first 24 bits are cheap: only ids that may arrive first by this bound are
    // computed exactly.
    uint32_t heads[BLOCK];
    for (int64_t i = 0; i < size; ++i) heads[i] = static_cast<uint32_t>(nearly_hashed(begin + steps[i]) >> 32);
    any = 0;
    for (int64_t i = 0; i < size; ++i) {
        const float bound = static_cast<float>(static_cast<int32_t>(~heads[i] >> 8));
        any += (block[i] >= floor) & (bound <= race->limit * block[i]);
    }
    if (!any) return;
    for (int64_t i = 0; i < size; ++i) {
        if (!(block[i] >= floor)) continue;
        if (!(static_cast<float>(static_cast<int32_t>(~heads[i] >> 8)) <= race->limit * block[i])) continue;
        const double arrival = exponential(hashed(begin + steps[i])) / static_cast<double>(block[i]);
        if (arrival < race->first)
            *race = {arrival, static_cast<float>(arrival * (1.0 + 0x1p-20) * 0x1p24), start + i};
    }
}

// ids: null to use the indices as ids.
INLINE int64_t race(const float* weights, const int64_t* ids, int64_t count, float floor, uint64_t key) {
    Race race = {INFINITY, INFINITY, 0};
    uint64_t steps[BLOCK];
    for (int64_t i = 0; i < BLOCK; ++i) steps[i] = key + STEP + static_cast<uint64_t>(i) * STEP;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = smaller(BLOCK, count - start);
        uint64_t begin = static_cast<uint64_t>(start) * STEP;
        if (ids != nullptr) {
            begin = 0;
            for (int64_t i = 0; i < size; ++i) steps[i] = key + STEP + static_cast<uint64_t>(ids[start + i]) * STEP;
        }
        if (size == BLOCK) {
            race_block(weights + start, BLOCK, floor, steps, begin, start, &race);
        } else {
            race_block(weights + start, size, floor, steps, begin, start, &race);
        }
    }
    return ids == nullptr ? race.winner : ids[race.winner];
}

// -- a complete row ----------------------------------------------------------------------------------------------------

struct Options {
    float scale;  // of the exponent of 2: log2(e) / temperature; 0: greedy
    int64_t top_k;
    double top_p;
    float min_p, penalty;
};

// The smallest weight inside the nucleus.
template <Isa ISA>
INLINE float nucleus_floor(const float* weights, int64_t count, uint64_t total, double top_p, float* spare) {
    const uint64_t enough = at_least_one(top_p * static_cast<double>(total));
    // Weights below an even share of the mass outside the nucleus are, together, less than that mass.
    const double share = static_cast<double>(total - enough) / static_cast<double>(count) / MASS_UNIT;
    const float low = static_cast<float>(share * (1.0 - 0x1p-20) - 0x1p-40);
    return cut<ISA, MASS>(weights, count, total, enough, {low > NO_MASS ? low : NO_MASS, 1.0f}, spare);
}

INLINE const float* penalised(const float* row, int64_t size, const int64_t* seen, int64_t seen_count, float penalty,
                              float* result) {
    std::memcpy(result, row, size * sizeof(float));
    for (int64_t i = 0; i < seen_count; ++i) {  // read from the row, so that an id listed twice counts once
        if (static_cast<uint64_t>(seen[i]) >= static_cast<uint64_t>(size)) continue;
        const float value = row[seen[i]];
        result[seen[i]] = value > 0.0f ? value / penalty : value * penalty;
    }
    return result;
}

template <Isa ISA>
INLINE int64_t draw_row(const float* row, const int64_t* ids, int64_t size, const Options& options, const int64_t* seen,
                        int64_t seen_count, uint64_t key, float* scratch) {
    float *const weights = scratch, *const spare = scratch + size;
    const float* logits = row;
    if (options.penalty != 1.0f) logits = penalised(row, size, seen, seen_count, options.penalty, weights);
    const Scan best = scan(logits, size);
    if (best.damaged) return NOT_NUMBERS;
    if (options.scale == 0.0f) return ids == nullptr ? best.index : ids[best.index];
    if (std::isinf(best.top)) return NOT_NUMBERS;
    float last = -INFINITY;
    if (0 < options.top_k && options.top_k < size)
        last = cut<ISA, NUMBER>(logits, size, size, options.top_k, {-INFINITY, best.top}, spare);
    const uint64_t total = weigh(logits, size, best.top, options.scale, last, weights);
    float floor = options.min_p > LEAST_WEIGHT ? options.min_p : LEAST_WEIGHT;
    if (options.top_p < 1.0) {
        const float nucleus = nucleus_floor<ISA>(weights, size, total, options.top_p, spare);
        floor = nucleus > floor ? nucleus : floor;
    }
    return race(weights, ids, size, floor, key);
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

// found[0]: the mass of the other logits relative to the best; found[1]: the best's margin to the second largest.
INLINE int64_t leading_of(const float* row, int64_t size, double* found) {
    const Scan best = scan(row, size);
    const float top = best.top;
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
    const Scan best = scan(row, size);
    return best.damaged ? NOT_NUMBERS : best.index;
}

// Writes the indices of the `count` largest, largest first. A block whose maximum is too small is skipped.
INLINE void top_of(const float* row, int64_t size, int64_t count, int64_t* found) {
    int32_t keys[MOST_TOP];
    int64_t kept = 0;
    for (int64_t start = 0; start < size; start += TOP_BLOCK) {
        const int64_t end = smaller(start + TOP_BLOCK, size);
        int32_t most = INT32_MIN;
        for (int64_t i = start; i < end; ++i) {
            const int32_t key = sortable(row[i]);
            most = key > most ? key : most;
        }
        if (kept == count && most <= keys[count - 1]) continue;
        for (int64_t i = start; i < end; ++i) {
            const int32_t key = sortable(row[i]);
            if (kept == count && key <= keys[count - 1]) continue;
            int64_t place = kept < count ? kept++ : count - 1;
            for (; place > 0 && keys[place - 1] < key; --place) {
                keys[place] = keys[place - 1];
                found[place] = found[place - 1];
            }
            keys[place] = key;
            found[place] = i;
        }
    }
}

// -- one copy for each instruction set ---------------------------------------------------------------------------------

// Never inlined, because an entry point must set the floating-point mode first.

#define COPY(NAME, ISA, TARGET)                                                                                        \
    TARGET int64_t draw_##NAME(const float* row, const int64_t* ids, int64_t size, const Options& options,             \
                               const int64_t* seen, int64_t seen_count, uint64_t key, float* scratch) {                \
        return draw_row<ISA>(row, ids, size, options, seen, seen_count, key, scratch);                                 \
    }                                                                                                                  \
    TARGET int64_t leading_##NAME(const float* row, int64_t size, double* found) {                                     \
        return leading_of(row, size, found);                                                                           \
    }                                                                                                                  \
    TARGET int64_t argmax_##NAME(const float* row, int64_t size) { return argmax_of(row, size); }                         \
    TARGET void top_##NAME(const float* row, int64_t size, int64_t count, int64_t* found) {                            \
        top_of(row, size, count, found);                                                                               \
    }

COPY(plain, PLAIN, NEVER_INLINE)
#if defined(__x86_64__)
COPY(avx2, AVX2, TARGET_AVX2)
COPY(avx512, AVX512, TARGET_AVX512)
#define CALL(FUNCTION, ...)                                                                                            \
    (chosen == AVX512 ? FUNCTION##_avx512(__VA_ARGS__)                                                                 \
     : chosen == AVX2 ? FUNCTION##_avx2(__VA_ARGS__)                                                                   \
                      : FUNCTION##_plain(__VA_ARGS__))

bool offers(Isa isa) {
    __builtin_cpu_init();  // called while the library is loaded, possibly before the runtime's own initialisation
    if (isa == AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return isa == PLAIN || (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"));
}
#else
#define CALL(FUNCTION, ...) FUNCTION##_plain(__VA_ARGS__)

bool offers(Isa isa) { return isa == PLAIN; }
#endif

Isa best_isa() { return offers(AVX512) ? AVX512 : offers(AVX2) ? AVX2 : PLAIN; }

Isa chosen = best_isa();

}  // namespace

// Uses "avx512", "avx2" or "plain" from now on in all threads; "" chooses the best. Returns 0 if it is not supported.
EDGE_EXPORT int edgedecode_draw_force(const char* name) {
    const Isa isa = !std::strcmp(name, "avx512") ? AVX512 : !std::strcmp(name, "avx2") ? AVX2 : PLAIN;
    if (*name != '\0' && isa == PLAIN && std::strcmp(name, "plain") != 0) return 0;
    if (!offers(isa)) return 0;
    chosen = *name == '\0' ? best_isa() : isa;
    return 1;
}

// Bytes of scratch memory, aligned to 8, for drawing from a row of this size.
EDGE_EXPORT int64_t edgedecode_draw_scratch(int64_t size) {
    return (3 * size + 2 * PADDING) * sizeof(float);
}

// The index of the first maximum, or -1 if there is a NaN.
EDGE_EXPORT int64_t edgedecode_argmax_row(const float* row, int64_t size) {
    const edgedecode::FloatMode mode;
    return CALL(argmax, row, size);
}

// Writes the indices of the `count` largest to found[count], largest first; a NaN counts as larger or smaller than all.
// Returns -1 if count is not 1 to 64, or larger than the row.
EDGE_EXPORT int64_t edgedecode_top_row(const float* row, int64_t size, int64_t count, int64_t* found) {
    if (count < 1 || count > MOST_TOP || count > size) return -1;
    const edgedecode::FloatMode mode;
    CALL(top, row, size, count, found);
    return count;
}

// Returns the arg-max; found[0] is the sum of e^(x - largest) over the others, found[1] the largest minus the second
// largest. Returns -1 if there is a NaN or the largest is infinite.
EDGE_EXPORT int64_t edgedecode_leading_row(const float* row, int64_t size, double* found) {
    const edgedecode::FloatMode mode;
    return CALL(leading, row, size, found);
}

// Draws from row[size]. ids: the id of each element, ascending; null: its index. seen: elements with a penalty. scale:
// log2(e) / temperature, 0 for the arg-max. Returns an id, or -1 if a logit is NaN or, unless greedy, the largest is
// infinite.
EDGE_EXPORT int64_t edgedecode_draw_row(const float* row, const int64_t* ids, int64_t size, float scale,
                                        int64_t top_k, double top_p, float min_p, float penalty,
                                        const int64_t* seen, int64_t seen_count, uint64_t key, float* scratch) {
    const edgedecode::FloatMode mode;
    const Options options = {scale, top_k, top_p, min_p, penalty};
    return CALL(draw, row, ids, size, options, seen, seen_count, key, scratch);
}
