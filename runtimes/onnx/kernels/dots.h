// Integer dot products of a unit's weights with rounded activations, in the best form for each instruction set; included
// after vectors.h. All are exact, so that all of them give the same bits.
//
// Dot<BITS, PLANES>: `keep` stores rounded values in the layout that `add` reads; `unpack` extracts the weights of a
// sub-block, or of one half of it, from the 64-byte vectors of a tile; `add` adds their products with one row to the sums
// of the units: those of all eight vectors, or of vectors FIRST to LAST - 1 alone. With kHalves = 2 the eight vectors are
// those of one half. If kPairs is set, `unpack_pairs` and `add_pair` do the same for two rows at once.

#if defined(EDGE_AVX2)

// 16-bit values, ordered in each group of four as first, third, second, fourth: `vpmaddwd` multiplies them by the even and
// the odd bytes of the weights. It supports every 8-bit weight (vpmaddubsw saturates) and both planes at once.
template <int BITS, int PLANES>
struct Dot {
  static constexpr int kZeroPoint = zero_of(BITS);
  static constexpr int kHalves = 2;
  static constexpr bool kPairs = false;
  static constexpr size_t kValueNbytes = 2 * kSubBlock;
  static inline void keep(int8_t* values, size_t i, VI v) {
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    words = _mm_shufflehi_epi16(_mm_shufflelo_epi16(words, 0xd8), 0xd8);
    _mm_storeu_si128((__m128i*)(values + 2 * i), words);
  }
  static inline void unpack(const uint8_t* quants, int half, const uint8_t* table, VW (&w)[8]) {
    if (BITS != 4) {
      for (int i = 0; i < 4; i++) {
        const VW x = vweights<BITS>(quants, 4 * half + i, table);
        w[2 * i] = _mm256_and_si256(x, _mm256_set1_epi16(255));
        w[2 * i + 1] = _mm256_srli_epi16(x, 8);
      }
    } else {
      const VW mask = _mm256_set1_epi16(15);
      for (int i = 0; i < 2; i++) {
        const VW x = vquants(quants + 64 * (2 * half + i));
        w[4 * i] = _mm256_and_si256(x, mask);
        w[4 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(x, 8), mask);
        w[4 * i + 2] = _mm256_and_si256(_mm256_srli_epi16(x, 4), mask);
        w[4 * i + 3] = _mm256_srli_epi16(x, 12);
      }
    }
  }
  template <int UNITS, int FIRST = 0, int LAST = 8>
  static inline void add(const VW (&w)[UNITS][8], const int8_t* a, VI* sums) {
    VI odd = _mm256_setzero_si256();
    for (int i = 0; i < 8; i += 2) {
      sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(w[0][i], vfour(a + 4 * i)));
      odd = i == 0 ? _mm256_madd_epi16(w[0][i + 1], vfour(a + 4 * i + 4))
                   : _mm256_add_epi32(odd, _mm256_madd_epi16(w[0][i + 1], vfour(a + 4 * i + 4)));
      keep_order(sums[0], odd);
    }
    sums[0] = _mm256_add_epi32(sums[0], odd);
  }
};

// 8-bit values: eight steps of vpmaddubsw fit 16 bits (15 * 128 * 2 * 8 = 30,720), so that one vpmaddwd widens the sum.
template <>
struct Dot<4, 1> {
  static constexpr int kZeroPoint = 8;
  static constexpr int kHalves = 1;
  static constexpr bool kPairs = false;
  static constexpr size_t kValueNbytes = kSubBlock;
  static inline void keep(int8_t* values, size_t i, VI v) { vstore_bytes(values + i, v); }
  static inline void unpack(const uint8_t* quants, int, const uint8_t* table, VW (&w)[8]) {
    for (int i = 0; i < 8; i++) w[i] = vweights<4>(quants, i, table);
  }
  template <int UNITS, int FIRST = 0, int LAST = 8>
  static inline void add(const VW (&w)[UNITS][8], const int8_t* a, VI* sums) {
    VI even = _mm256_maddubs_epi16(w[0][0], vfour(a)), odd = _mm256_maddubs_epi16(w[0][1], vfour(a + 4));
    for (int i = 2; i < 8; i += 2) {
      even = _mm256_add_epi16(even, _mm256_maddubs_epi16(w[0][i], vfour(a + 4 * i)));
      odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(w[0][i + 1], vfour(a + 4 * i + 4)));
      keep_order(even, odd);
    }
    sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1)));
  }
};

#else

// Products of bytes, four of a column at once, one plane after the other.
template <int BITS, int PLANES>
struct Dot {
#if defined(EDGE_AVX512) || defined(EDGE_AVXVNNI)
  static constexpr int kZeroPoint = zero_of(BITS);  // unsigned by signed
#else
  static constexpr int kZeroPoint = 0;
#endif
  static constexpr int kHalves = 1;
#if defined(EDGE_I8MM)
  static constexpr bool kPairs = true;
#else
  static constexpr bool kPairs = false;
#endif
  static constexpr size_t kValueNbytes = PLANES * kSubBlock;
  static inline void keep(int8_t* values, size_t i, VI v) {
    if (PLANES == 1) return vstore_bytes(values + i, v);
    const VI high = vhigh(v);
    vstore_bytes(values + i, high);
    vstore_bytes(values + kSubBlock + i, vlow(v, high));
  }
  static inline void unpack(const uint8_t* quants, int, const uint8_t* table, VW (&w)[8]) {
    for (int i = 0; i < 8; i++) w[i] = vweights<BITS>(quants, i, table);
  }
  template <int UNITS, int FIRST = 0, int LAST = 8>
  static inline void add(const VW (&w)[UNITS][8], const int8_t* a, VI* sums) {
    if (PLANES == 2) {
      VI high[UNITS];
      for (int u = 0; u < UNITS; u++) high[u] = vset_int(0);
      steps<UNITS, FIRST, LAST>(w, a, high);
      steps<UNITS, FIRST, LAST>(w, a + kSubBlock, sums);
      for (int u = 0; u < UNITS; u++) sums[u] = vjoin(high[u], sums[u]);
    } else {
      steps<UNITS, FIRST, LAST>(w, a, sums);
    }
  }
  template <int UNITS, int FIRST, int LAST>
  static inline void steps(const VW (&w)[UNITS][8], const int8_t* a, VI* sums) {
#if defined(EDGE_NEON)
    for (int i = FIRST; i < LAST; i += 4) {
      const int8x16_t values = vld1q_s8(a + 4 * i);
      for (int u = 0; u < UNITS; u++) {
        sums[u] = vdotq_laneq_s32(sums[u], w[u][i], values, 0);
        sums[u] = vdotq_laneq_s32(sums[u], w[u][i + 1], values, 1);
        sums[u] = vdotq_laneq_s32(sums[u], w[u][i + 2], values, 2);
        sums[u] = vdotq_laneq_s32(sums[u], w[u][i + 3], values, 3);
      }
    }
#else
    for (int i = FIRST; i < LAST; i++) {
      const VI four = vfour(a + 4 * i);
      for (int u = 0; u < UNITS; u++) sums[u] = vdot(sums[u], w[u][i], four);
    }
#endif
  }
#if defined(EDGE_I8MM)
  // vmmlaq multiplies two rows of eight values by two columns: w[2 i] holds columns 0 and 1 of a unit, w[2 i + 1] 2 and 3.
  static inline void unpack_pairs(const uint8_t* quants, const uint8_t* table, VW (&w)[8]) {
    unpack(quants, 0, table, w);
    for (int i = 0; i < 8; i += 2) {
      const int32x4_t first = vreinterpretq_s32_s8(w[i]), second = vreinterpretq_s32_s8(w[i + 1]);
      w[i] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
      w[i + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
    }
  }
  template <int UNITS, int FIRST, int LAST>
  static inline void add_pair(const VW (&w)[UNITS][8], const int8_t* a, const int8_t* b, VI* first, VI* second) {
    steps_of_pair<UNITS, FIRST, LAST>(w, a, b, first, second);
    if (PLANES == 1) return;
    VI low[2][UNITS];
    steps_of_pair<UNITS, FIRST, LAST>(w, a + kSubBlock, b + kSubBlock, low[0], low[1]);
    for (int u = 0; u < UNITS; u++) {
      first[u] = vjoin(first[u], low[0][u]);
      second[u] = vjoin(second[u], low[1][u]);
    }
  }
  template <int UNITS, int FIRST, int LAST>
  static inline void steps_of_pair(const VW (&w)[UNITS][8], const int8_t* a, const int8_t* b, VI* first, VI* second) {
    VI left[UNITS], right[UNITS];
    for (int u = 0; u < UNITS; u++) left[u] = right[u] = vset_int(0);
    for (int i = FIRST / 4; i < LAST / 4; i++) {
      const int64x2_t x = vreinterpretq_s64_s8(vld1q_s8(a + 16 * i)), y = vreinterpretq_s64_s8(vld1q_s8(b + 16 * i));
      const VW both[2] = {vreinterpretq_s8_s64(vzip1q_s64(x, y)), vreinterpretq_s8_s64(vzip2q_s64(x, y))};
      for (int j = 0; j < 2; j++)
        for (int u = 0; u < UNITS; u++) {
          left[u] = vmmlaq_s32(left[u], both[j], w[u][4 * i + 2 * j]);
          right[u] = vmmlaq_s32(right[u], both[j], w[u][4 * i + 2 * j + 1]);
        }
    }
    for (int u = 0; u < UNITS; u++) {
      const int64x2_t l = vreinterpretq_s64_s32(left[u]), r = vreinterpretq_s64_s32(right[u]);
      first[u] = vreinterpretq_s32_s64(vzip1q_s64(l, r));
      second[u] = vreinterpretq_s32_s64(vzip2q_s64(l, r));
    }
  }
#endif
};

#endif
