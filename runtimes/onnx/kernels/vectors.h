// Vector operations of one instruction set under common names; each kernels_*.cpp includes it in a separate namespace.
//
// Floats (VF), 32-bit integers (VI): kLanes of each. VW: 4 * kLanes bytes of weights, four for each lane's column.
// Every operation is one IEEE operation per lane, so that the kernels give the same bits on every instruction set.

#if defined(EDGE_AVX512)

constexpr size_t kLanes = 16;
using VF = __m512;
using VI = __m512i;
using VW = __m512i;
static inline VF vload(const float* p) { return _mm512_loadu_ps(p); }
static inline void vstore(float* p, VF v) { _mm512_storeu_ps(p, v); }
static inline VF vset(float x) { return _mm512_set1_ps(x); }
static inline VF vadd(VF a, VF b) { return _mm512_add_ps(a, b); }
static inline VF vsub(VF a, VF b) { return _mm512_sub_ps(a, b); }
static inline VF vmul(VF a, VF b) { return _mm512_mul_ps(a, b); }
static inline VF vdiv(VF a, VF b) { return _mm512_div_ps(a, b); }
static inline VF vfma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
static inline VF vmax(VF a, VF b) { return _mm512_max_ps(a, b); }
static inline VF vmin(VF a, VF b) { return _mm512_min_ps(a, b); }
static inline VF vabs(VF a) { return _mm512_abs_ps(a); }
static inline VF vround(VF a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline VF vzero_below(VF v, VF x, VF floor) {  // 0 where x < floor, else v
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, floor, _CMP_NLT_UQ), v);
}
static inline VI vint(VF a) { return _mm512_cvtps_epi32(a); }
static inline VF vfloat(VI a) { return _mm512_cvtepi32_ps(a); }
static inline VF vpower2(VI n) {  // 2 to the n, -126 <= n <= 127
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
static inline VF vhalf(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline VF vbfloat16(const BFloat16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline VF vbytes(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
static inline void vstore_bytes(int8_t* p, VI v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(v)); }
static inline VI vhigh(VI v) {  // the high plane of 16-bit values: (v + 128) >> 8
  return _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
}
static inline VI vlow(VI v, VI high) { return _mm512_sub_epi32(v, _mm512_slli_epi32(high, 8)); }
static inline VI vadd_int(VI a, VI b) { return _mm512_add_epi32(a, b); }
static inline VI vjoin(VI high, VI low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
static inline int32_t vsum_int(VI v) { return _mm512_reduce_add_epi32(v); }
static inline VI vset_int(int32_t x) { return _mm512_set1_epi32(x); }
static inline VI vload_int(const int32_t* p) { return _mm512_loadu_si512(p); }
static inline VF vpick(const float* p, VI which) { return _mm512_permutexvar_ps(which, _mm512_loadu_ps(p)); }
constexpr int kUnits = 2;
static inline VW vquants(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline VW vlow_nibbles(VW x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
static inline VW vhigh_nibbles(VW x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
static inline VW vlookup(const uint8_t* table, VW x) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), x);
}
static inline VW vmerge(VW x, VW high, int left, int mask) {
  const VW moved = left >= 0 ? _mm512_slli_epi16(high, left) : _mm512_srli_epi16(high, -left);
  return _mm512_ternarylogic_epi32(x, moved, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}
static inline VW vcentered(VW x, int) { return x; }
static inline VI vdot(VI sum, VW w, VI a) { return _mm512_dpbusd_epi32(sum, w, a); }

#elif defined(EDGE_AVX2) || defined(EDGE_AVXVNNI)

constexpr size_t kLanes = 8;
using VF = __m256;
using VI = __m256i;
using VW = __m256i;
static inline VF vload(const float* p) { return _mm256_loadu_ps(p); }
static inline void vstore(float* p, VF v) { _mm256_storeu_ps(p, v); }
static inline VF vset(float x) { return _mm256_set1_ps(x); }
static inline VF vadd(VF a, VF b) { return _mm256_add_ps(a, b); }
static inline VF vsub(VF a, VF b) { return _mm256_sub_ps(a, b); }
static inline VF vmul(VF a, VF b) { return _mm256_mul_ps(a, b); }
static inline VF vdiv(VF a, VF b) { return _mm256_div_ps(a, b); }
static inline VF vfma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
static inline VF vmax(VF a, VF b) { return _mm256_max_ps(a, b); }
static inline VF vmin(VF a, VF b) { return _mm256_min_ps(a, b); }
static inline VF vabs(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline VF vround(VF a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline VF vzero_below(VF v, VF x, VF floor) { return _mm256_and_ps(v, _mm256_cmp_ps(x, floor, _CMP_NLT_UQ)); }
static inline VI vint(VF a) { return _mm256_cvtps_epi32(a); }
static inline VF vfloat(VI a) { return _mm256_cvtepi32_ps(a); }
static inline VF vpower2(VI n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline VF vhalf(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline VF vbfloat16(const BFloat16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline VF vbytes(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
static inline void vstore_bytes(int8_t* p, VI v) {
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(words, words));
}
static inline VI vhigh(VI v) { return _mm256_srai_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(128)), 8); }
static inline VI vlow(VI v, VI high) { return _mm256_sub_epi32(v, _mm256_slli_epi32(high, 8)); }
static inline VI vadd_int(VI a, VI b) { return _mm256_add_epi32(a, b); }
static inline VI vjoin(VI high, VI low) { return _mm256_add_epi32(_mm256_slli_epi32(high, 8), low); }
static inline int32_t vsum_int(VI v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
static inline VI vset_int(int32_t x) { return _mm256_set1_epi32(x); }
static inline VI vload_int(const int32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline VF vpick(const float* p, VI which) {
  const VF low = _mm256_permutevar8x32_ps(vload(p), which), high = _mm256_permutevar8x32_ps(vload(p + 8), which);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(which, 28)));
}
constexpr int kUnits = 1;
static inline VW vquants(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline VW vlow_nibbles(VW x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
static inline VW vhigh_nibbles(VW x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)); }
static inline VW vlookup(const uint8_t* table, VW x) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), x);
}
static inline VW vmerge(VW x, VW high, int left, int mask) {
  const VW moved = left >= 0 ? _mm256_slli_epi16(high, left) : _mm256_srli_epi16(high, -left);
  return _mm256_or_si256(x, _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask))));
}
static inline VW vcentered(VW x, int) { return x; }
#if defined(EDGE_AVXVNNI)
static inline VI vdot(VI sum, VW w, VI a) { return _mm256_dpbusd_avx_epi32(sum, w, a); }
#endif

#elif defined(EDGE_NEON)

constexpr size_t kLanes = 4;
using VF = float32x4_t;
using VI = int32x4_t;
using VW = int8x16_t;
static inline VF vload(const float* p) { return vld1q_f32(p); }
static inline void vstore(float* p, VF v) { vst1q_f32(p, v); }
static inline VF vset(float x) { return vdupq_n_f32(x); }
static inline VF vadd(VF a, VF b) { return vaddq_f32(a, b); }
static inline VF vsub(VF a, VF b) { return vsubq_f32(a, b); }
static inline VF vmul(VF a, VF b) { return vmulq_f32(a, b); }
static inline VF vdiv(VF a, VF b) { return vdivq_f32(a, b); }
static inline VF vfma(VF a, VF b, VF c) { return vfmaq_f32(c, a, b); }
// As on x86: the second operand if one is NaN.
static inline VF vmax(VF a, VF b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline VF vmin(VF a, VF b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline VF vabs(VF a) { return vabsq_f32(a); }
static inline VF vround(VF a) { return vrndnq_f32(a); }
static inline VF vzero_below(VF v, VF x, VF floor) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(x, floor)));
}
static inline VI vint(VF a) { return vcvtnq_s32_f32(a); }
static inline VF vfloat(VI a) { return vcvtq_f32_s32(a); }
static inline VF vpower2(VI n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
static inline VF vhalf(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline VF vbfloat16(const BFloat16* p) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))), 16));
}
static inline VF vbytes(const int8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
static inline void vstore_bytes(int8_t* p, VI v) {
  int16x4_t words = vqmovn_s32(v);
  int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
  int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
  memcpy(p, &four, 4);
}
static inline VI vhigh(VI v) { return vshrq_n_s32(vaddq_s32(v, vdupq_n_s32(128)), 8); }
static inline VI vlow(VI v, VI high) { return vsubq_s32(v, vshlq_n_s32(high, 8)); }
static inline VI vadd_int(VI a, VI b) { return vaddq_s32(a, b); }
static inline VI vjoin(VI high, VI low) { return vaddq_s32(vshlq_n_s32(high, 8), low); }
static inline int32_t vsum_int(VI v) { return vaddvq_s32(v); }
static inline VI vset_int(int32_t x) { return vdupq_n_s32(x); }
static inline VI vload_int(const int32_t* p) { return vld1q_s32(p); }
static inline VF vpick(const float* p, VI which) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(p);
  const uint8x16x4_t all = {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  const VI places = vmlaq_s32(vdupq_n_s32(0x03020100), which, vdupq_n_s32(0x04040404));
  return vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_s32(places)));
}
constexpr int kUnits = 2;
static inline uint8x16_t vquants(const uint8_t* p) { return vld1q_u8(p); }
static inline uint8x16_t vlow_nibbles(uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(15)); }
static inline uint8x16_t vhigh_nibbles(uint8x16_t x) { return vshrq_n_u8(x, 4); }
static inline uint8x16_t vlookup(const uint8_t* table, uint8x16_t x) { return vqtbl1q_u8(vld1q_u8(table), x); }
static inline uint8x16_t vmerge(uint8x16_t x, uint8x16_t high, int left, int mask) {
  const uint8x16_t moved = vshlq_u8(high, vdupq_n_s8(static_cast<int8_t>(left)));
  return vorrq_u8(x, vandq_u8(moved, vdupq_n_u8(static_cast<uint8_t>(mask))));
}
static inline VW vcentered(uint8x16_t x, int zero) {
  return vreinterpretq_s8_u8(vsubq_u8(x, vdupq_n_u8(static_cast<uint8_t>(zero))));
}

#else  // plain C++

constexpr size_t kLanes = 4;
struct VF { float v[kLanes]; };
struct VI { int32_t v[kLanes]; };
struct VW { int8_t v[4 * kLanes]; };
#define EDGE_LANES(kind, value) { kind r; for (size_t i = 0; i < kLanes; i++) r.v[i] = (value); return r; }
static inline VF vload(const float* p) EDGE_LANES(VF, p[i])
static inline void vstore(float* p, VF a) { memcpy(p, a.v, sizeof a.v); }
static inline VF vset(float x) EDGE_LANES(VF, x)
static inline VF vadd(VF a, VF b) EDGE_LANES(VF, a.v[i] + b.v[i])
static inline VF vsub(VF a, VF b) EDGE_LANES(VF, a.v[i] - b.v[i])
static inline VF vmul(VF a, VF b) EDGE_LANES(VF, a.v[i] * b.v[i])
static inline VF vdiv(VF a, VF b) EDGE_LANES(VF, a.v[i] / b.v[i])
static inline VF vfma(VF a, VF b, VF c) EDGE_LANES(VF, std::fma(a.v[i], b.v[i], c.v[i]))
static inline VF vmax(VF a, VF b) EDGE_LANES(VF, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
static inline VF vmin(VF a, VF b) EDGE_LANES(VF, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
static inline VF vabs(VF a) EDGE_LANES(VF, std::fabs(a.v[i]))
static inline VF vround(VF a) EDGE_LANES(VF, std::nearbyintf(a.v[i]))
static inline VF vzero_below(VF a, VF x, VF floor) EDGE_LANES(VF, x.v[i] < floor.v[i] ? 0.0f : a.v[i])
// As on x86: values out of range and NaN give the smallest integer.
static inline int32_t integer_of(float x) {
  return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(std::nearbyintf(x)) : INT32_MIN;
}
static inline VI vint(VF a) EDGE_LANES(VI, integer_of(a.v[i]))
static inline VF vfloat(VI a) EDGE_LANES(VF, static_cast<float>(a.v[i]))
static inline float power2(int32_t n) {
  uint32_t bits = static_cast<uint32_t>(n + 127) << 23;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline VF vpower2(VI n) EDGE_LANES(VF, power2(n.v[i]))
static inline VF vhalf(const uint16_t* p) EDGE_LANES(VF, half_to_float(p[i]))
static inline VF vbfloat16(const BFloat16* p) EDGE_LANES(VF, bfloat16_to_float(p[i]))
static inline VF vbytes(const int8_t* p) EDGE_LANES(VF, static_cast<float>(p[i]))
static inline void vstore_bytes(int8_t* p, VI a) {
  for (size_t i = 0; i < kLanes; i++) p[i] = static_cast<int8_t>(a.v[i]);
}
static inline VI vhigh(VI a) EDGE_LANES(VI, (a.v[i] + 128) >> 8)
static inline VI vlow(VI a, VI high) EDGE_LANES(VI, a.v[i] - high.v[i] * 256)
static inline VI vadd_int(VI a, VI b) EDGE_LANES(VI, a.v[i] + b.v[i])
static inline VI vjoin(VI high, VI low) EDGE_LANES(VI, high.v[i] * 256 + low.v[i])
static inline int32_t vsum_int(VI a) {
  int32_t sum = 0;
  for (size_t i = 0; i < kLanes; i++) sum += a.v[i];
  return sum;
}
static inline VI vset_int(int32_t x) EDGE_LANES(VI, x)
static inline VI vload_int(const int32_t* p) EDGE_LANES(VI, p[i])
static inline VF vpick(const float* p, VI which) EDGE_LANES(VF, p[which.v[i] & 15])
constexpr int kUnits = 1;
struct Quants { uint8_t v[4 * kLanes]; };
static inline Quants vquants(const uint8_t* p) {
  Quants x;
  memcpy(x.v, p, sizeof x.v);
  return x;
}
#define EDGE_QUANTS(value) { Quants r; for (size_t i = 0; i < 4 * kLanes; i++) r.v[i] = static_cast<uint8_t>(value); return r; }
static inline Quants vlow_nibbles(const Quants& x) EDGE_QUANTS(x.v[i] & 15)
static inline Quants vhigh_nibbles(const Quants& x) EDGE_QUANTS(x.v[i] >> 4)
static inline Quants vlookup(const uint8_t* table, const Quants& x) EDGE_QUANTS(table[x.v[i]])
static inline Quants vmerge(const Quants& x, const Quants& high, int left, int mask)
    EDGE_QUANTS(x.v[i] | (high.v[i] << 4 >> (4 - left) & mask))
static inline VW vcentered(const Quants& x, int zero) {
  VW w;
  for (size_t i = 0; i < 4 * kLanes; i++) w.v[i] = static_cast<int8_t>(x.v[i] - zero);
  return w;
}
#undef EDGE_QUANTS
static inline VI vdot(VI sum, const VW& w, VI a) {
  for (size_t i = 0; i < kLanes; i++) {
    int8_t four[4];
    memcpy(four, &a.v[i], 4);
    for (size_t j = 0; j < 4; j++) sum.v[i] += w.v[4 * i + j] * four[j];
  }
  return sum;
}
#undef EDGE_LANES

#endif

// Of the weights' vectors: `vlookup` reads a table of 16 bytes, `vmerge` adds the masked bits of another vector, shifted
// to the left, and `vcentered` subtracts the zero point where signed bytes are multiplied (see Dot::kZeroPoint).

// Vector i of 8 of a unit's weights in a sub-block (see prepare.cpp), 4 bytes a column.
template <int BITS>
static inline VW vweights(const uint8_t* quants, int i, const uint8_t* table) {
  if (BITS == 8) return vcentered(vquants(quants + 64 * i), zero_of(BITS));
  const auto pair = vquants(quants + 64 * (i / 2));
  const auto low = i % 2 == 0 ? vlow_nibbles(pair) : vhigh_nibbles(pair);
  if (BITS == kIndices) return vcentered(vlookup(table, low), zero_of(BITS));
  constexpr int kMore = BITS - 4, kTogether = 8 / (kMore > 0 ? kMore : 8);  // bits above the nibble; vectors in a byte
  if (kMore <= 0) return vcentered(low, zero_of(BITS));
  const auto high = vquants(quants + 256 + 64 * (i / kTogether));
  return vcentered(vmerge(low, high, 4 - kMore * (i % kTogether), ((1 << kMore) - 1) << 4), zero_of(BITS));
}

// Broadcasts four bytes to all lanes.
static inline VI vfour(const int8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return vset_int(four);
}
#if defined(EDGE_AVX2)
// Keeps the compiler from reordering the additions, which would need more registers than there are.
static inline void keep_order(VI& a, VI& b) {
#if defined(__GNUC__)
  asm("" : "+x"(a), "+x"(b));
#endif
}
#endif

constexpr size_t kGroups = kTile / kLanes;  // vectors that hold 16 values

// The sum of 16 values in one fixed order for any vector width: halves are added until one value is left.
static inline float sum16(const VF (&v)[kGroups]) {
  float x[kTile];
  for (size_t g = 0; g < kGroups; g++) vstore(x + g * kLanes, v[g]);
  for (size_t half = kTile / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; i++) x[i] = x[i] + x[i + half];
  return x[0];
}

// e to the x (Cephes expf: range reduction by ln 2 in two parts, a polynomial of degree 5). 0 below -87; NaN stays NaN,
// since the minimum and maximum return their second operand if one is NaN.
static inline VF vexp(VF x) {
  const VF floor = vset(-87.0f);
  VF clamped = vmin(vset(88.0f), vmax(floor, x));
  VF n = vround(vmul(clamped, vset(1.44269504088896341f)));
  VF r = vfma(n, vset(-0.693359375f), clamped);
  r = vfma(n, vset(2.12194440e-4f), r);
  VF p = vset(1.9875691500e-4f);
  p = vfma(p, r, vset(1.3981999507e-3f));
  p = vfma(p, r, vset(8.3334519073e-3f));
  p = vfma(p, r, vset(4.1665795894e-2f));
  p = vfma(p, r, vset(1.6666665459e-1f));
  p = vfma(p, r, vset(5.0000001201e-1f));
  p = vadd(vfma(p, vmul(r, r), r), vset(1.0f));
  return vzero_below(vmul(p, vpower2(vint(n))), x, floor);
}

static inline VF vsigmoid(VF x) { return vdiv(vset(1.0f), vadd(vset(1.0f), vexp(vsub(vset(0.0f), x)))); }

// 1 - 2 / (e^2x + 1): absolute error below 2e-7.
static inline VF vtanh(VF x) {
  return vsub(vset(1.0f), vdiv(vset(2.0f), vadd(vexp(vadd(x, x)), vset(1.0f))));
}

static inline VF vgelu_tanh(VF x) {
  VF cube = vmul(vmul(x, x), x);
  VF inner = vmul(vset(0.7978845608028654f), vfma(vset(0.044715f), cube, x));
  return vmul(vmul(vset(0.5f), x), vadd(vset(1.0f), vtanh(inner)));
}
