// Turns rows of logits into tokens for one sequence, as edgedecode/sampling/sampler.py and row_draw.py define it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "noise.h"
#include "options.h"
#include "penalties.h"

namespace edgedecode {

// The likeliest element at temperature 1: the others' mass over its own, and its margin to the second.
struct Leading {
  int64_t index = 0;
  double others = 0, margin = 0;
};

class Sampler {
 public:
  // options must outlive it.
  Sampler(const SamplingOptions& options, int64_t vocabulary_size);
  // Starts a sequence; its last `generated` tokens are an answer's.
  void begin(const Ids& tokens, int64_t generated = 0);
  void extend(const Ids& tokens);
  bool takes_largest() const { return options_.greedy() && !options_.changes_logits(); }
  // Samples with the noise of `key`. path: drafted tokens between the sequence and this row. ids: of the row's
  // elements, ascending; null: their indices. Throws capability_error for logits that are not numbers.
  int64_t draw(const float* row, const Ids& path, uint64_t key, const std::vector<int64_t>* ids = nullptr);
  // Ids of the k largest raw logits, likeliest first.
  std::vector<int64_t> top(const float* row, int k) const;
  static Leading leading(const float* row, int64_t size);
  int64_t vocabulary_size() const { return size_; }

 private:
  struct Kept {
    std::vector<int64_t> indices;
    std::vector<float> weights;
  };
  Probs unsurprising_probs(const float* row, const Ids& path, uint64_t key, const std::vector<int64_t>* ids);
  std::vector<float> penalised(const float* row, int64_t size, const Ids& path, const std::vector<int64_t>* ids) const;
  Kept weighted(const float* logits, int64_t size, double coin, std::optional<double> bits) const;
  int64_t drawn(const float* row, int64_t size, const SamplingOptions& options, const Marked& seen, uint64_t key,
                const std::vector<int64_t>* ids);

  const SamplingOptions& options_;
  const SamplingOptions unpenalised_;
  const Marked biases_;
  const int64_t size_;
  const bool known_;  // whether the kernels' draw has all options that keep some weights
  Counter counter_;
  std::unique_ptr<Repetitions> dry_;
  std::unique_ptr<SurpriseLimit> limit_;
  std::vector<float> scratch_;
};

// The sum in numpy's order: pairwise, with eight accumulators in blocks of up to 128.
double pairwise_sum(const double* values, int64_t count);

}  // namespace edgedecode
