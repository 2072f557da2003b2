#include "noise.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace edgedecode {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;
constexpr double kMargin = 1 + 0x1p-40;  // far above the rounding errors of the logarithm and the divisions
constexpr int kSeedBits = 53;            // readers of JSON that store numbers as doubles keep such a seed exact

uint64_t hashed(uint64_t key, int64_t id) { return mixed(key + static_cast<uint64_t>(id) * kStep); }

// The hash over 2^64, never 0 or 1, and exactly 1 - u for ~hash.
double uniform(uint64_t hash) { return (static_cast<double>(hash >> 12) + 0.5) * 0x1p-52; }

}  // namespace

uint64_t mixed(uint64_t value) {
  value += kStep;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// After e_log.c of FreeBSD's msun (Sun Microsystems, 1993), as counter_rng.py and draw.cpp.
double logarithm(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752440) m = m + m, exponent -= 1;
  const double k = exponent, f = m - 1.0, s = f / (2.0 + f), z = s * s, w = z * z;
  const double odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double even = z * (6.666666666666735130e-01 +
                           w * (2.857142874366239149e-01 +
                                w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double r = even + odd, half = 0.5 * f * f;
  return k * 6.93147180369123816490e-01 - ((half - (s * (half + r) + k * 1.90821492927058770002e-10)) - f);
}

double first_uniform(uint64_t key) { return uniform(hashed(key, -1)); }

int64_t first_arrival(uint64_t key, const std::vector<int64_t>& ids, const std::vector<double>& rates) {
  size_t nearest = 0;
  double least = INFINITY;
  for (size_t index = 0; index < ids.size(); ++index) {
    const uint64_t hash = hashed(key, ids[index]);
    // 1 - u is a lower bound on the exponential, -log u, and much cheaper.
    if (uniform(~hash) / rates[index] > least * kMargin) continue;
    const double time = -logarithm(uniform(hash)) / rates[index];
    if (time < least) nearest = index, least = time;
  }
  return static_cast<int64_t>(nearest);
}

uint64_t answer_seed(std::optional<uint64_t> seed, int64_t number) {
  if (!seed) {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32 | device()) >> (64 - kSeedBits);
  }
  return number == 0 ? *seed : mixed(mixed(*seed) + static_cast<uint64_t>(number)) >> (64 - kSeedBits);
}

}  // namespace edgedecode
