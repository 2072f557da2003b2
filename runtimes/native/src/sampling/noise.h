// Counter-based noise: one number per (key, id), as edgedecode/sampling/counter_rng.py defines it, bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace edgedecode {

uint64_t mixed(uint64_t value);  // splitmix64's output for this state
double logarithm(double x);      // ln x for x in (0, 1], with the same bits on every platform
double first_uniform(uint64_t key);
// The index that arrives first, where ids[i] takes exponential(ids[i]) / rates[i]; of equal ones the smallest.
int64_t first_arrival(uint64_t key, const std::vector<int64_t>& ids, const std::vector<double>& rates);
// The seed of answer `number` of a session: its own for the first, derived ones after it, or random ones.
uint64_t answer_seed(std::optional<uint64_t> seed, int64_t number);

// An answer's noise as a function of seed and position.
class Noise {
 public:
  void begin(uint64_t seed) { hash_key_ = mixed(mixed(seed)); }
  uint64_t key_at(int64_t position) const { return mixed(hash_key_ + static_cast<uint64_t>(position)); }

 private:
  uint64_t hash_key_ = 0;
};

}  // namespace edgedecode
