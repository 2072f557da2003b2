// The sampling options by their names in the HTTP API, with the ranges of edgedecode/sampling/weights.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../json.h"

namespace edgedecode {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy
  double top_k = 0, top_p = 1, min_p = 0;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0, penalty_window = 0;
  double top_n_sigma = 0, typical_p = 1, xtc_probability = 0, xtc_threshold = 0.1;
  double mirostat = 0, mirostat_tau = 5, mirostat_eta = 0.1;
  double dry_multiplier = 0, dry_base = 1.75, dry_allowed_length = 2, dry_penalty_last_n = 0;
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
  std::vector<int64_t> breaker_ids;                    // of the tokens that contain a breaker, ascending
  std::vector<std::pair<int64_t, double>> logit_bias;  // ascending by id

  bool greedy() const { return temperature == 0; }
  bool penalises() const { return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0; }
  bool changes_logits() const { return penalises() || !logit_bias.empty() || dry_multiplier != 0; }
  bool same_as(const SamplingOptions& other) const;
  // Takes a member of a request; returns false if it is none of `names`. Throws input_error.
  static std::string names();
  bool take(const std::string& name, const Json& value);
  // Checks biases, and finds the breakers' ids. find: ids of the tokens that contain a text.
  void bind(int64_t vocabulary_size, const std::function<std::vector<int64_t>(const std::string&)>& find);
  // The same for rows that have biases and penalties already.
  SamplingOptions unpenalised() const;
};

}  // namespace edgedecode
