// What penalties need to know of a sequence, as in edgedecode/sampling/penalties.py, dry.py and mirostat.py.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../decoding/model.h"
#include "options.h"

namespace edgedecode {

// Ids, each once, each with a number: a count, a bias or a penalty.
struct Marked {
  std::vector<int64_t> ids;
  std::vector<float> numbers;

  void add(int64_t id, float number) { ids.push_back(id), numbers.push_back(number); }
  // The same marks in a row whose elements have these ids, ascending; null: its indices.
  Marked among(const std::vector<int64_t>* row_ids) const;
};

Marked biases_of(const SamplingOptions& options);

// How often each token was generated, in all of the sequence or its last `window` tokens; those of a prompt count 0.
class Counter {
 public:
  Counter(int64_t size, int64_t window) : size_(size), window_(window) {}
  void clear() { tokens_.clear(), places_.clear(), counts_ = Marked(); }
  void add(const int32_t* tokens, int64_t count, bool generated);
  Marked after(const Ids& path) const;

 private:
  int64_t size_, window_;
  std::vector<std::pair<int32_t, bool>> tokens_;  // with a window: each, and whether it was generated
  std::unordered_map<int64_t, size_t> places_;    // else: token -> place in `counts_`
  Marked counts_;
};

// DRY: where the last L tokens occurred before, what followed them is penalised by multiplier * base^(L - allowed).
class Repetitions {
 public:
  Repetitions(int64_t size, const SamplingOptions& options) : size_(size), options_(options) {}
  void begin() { tokens_.clear(); }
  void add(const Ids& tokens) { tokens_ = with(tokens); }
  Marked after(const Ids& path) const;

 private:
  std::vector<int64_t> with(const Ids& tokens) const;

  int64_t size_;
  const SamplingOptions& options_;
  std::vector<int64_t> tokens_;
};

// A sparse distribution: ids ascending, p positive with sum 1.
struct Probs {
  std::vector<int64_t> ids;
  std::vector<double> p;

  double of(int64_t id) const;
};

// Mirostat 2: a limit of surprise, in bits, that follows the tokens drawn.
class SurpriseLimit {
 public:
  SurpriseLimit(double target, double rate) : target_(target), rate_(rate) { begin(); }
  void begin() { limits_ = {2 * target_}, rows_.clear(); }
  double after(const Ids& path);
  void show(const Ids& path, Probs probs);
  void extend(const Ids& tokens) {
    limits_ = {after(tokens)};
    rows_.clear();
  }

 private:
  const double target_, rate_;
  std::vector<double> limits_;  // after each token of the path
  std::map<size_t, Probs> rows_;
};

}  // namespace edgedecode
