// The toy model of edgedecode/testing.py: logits from the last two tokens and the position, so that a stale cache
// changes the text; and a virtual clock on which a pass takes its cost.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "decoding/model.h"

namespace edgedecode {

struct VirtualClock {
  double now() const;
  double pass_seconds = 0;
  int64_t target_passes = 0, draft_passes = 0;
};

// tables: a file of float32 `first` [vocabulary, rows], `second` [vocabulary, rows], `third` [7, rows].
class TableModel : public LanguageModel {
 public:
  TableModel(const std::string& tables, int vocabulary, int rows, int context, std::vector<int64_t> ids,
             int64_t* passes);
  const ModelCard& card() const override { return card_; }
  std::unique_ptr<State> new_state(int capacity, int rows) override;
  Rows forward(const Ids& tokens, State& state, int rows) override;
  // As a head: its logits are those after its tokens, with a trace of the features or the output that it reads.
  Rows draft(const Ids& tokens, State& state, const float* features, const float* hidden, float* out) override;

 private:
  ModelCard card_;
  int width_;
  std::vector<float> first_, second_, third_, logits_;
  int64_t* passes_;
};

}  // namespace edgedecode
