// Scalar operations for remainders of vectors; included inside the namespace of each instruction set.

// a * b + c, rounded once.
static inline float fused(float a, float b, float c) { return std::fma(a, b, c); }

// The value of an IEEE half-precision number.
static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 0) {  // a denormal, exact as a float
    const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline float bfloat16_to_float(BFloat16 half) {
  const uint32_t bits = static_cast<uint32_t>(half.bits) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
