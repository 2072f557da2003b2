// A model on ONNX Runtime with our operators: rows to append become passes over the graph.
//
// A pass's inputs and outputs are bound once and written in place; bound again is what changes its size or place.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../decoding/model.h"
#include "../pack/budget.h"
#include "../pack/manifest.h"
#include "engine.h"
#include "onnx_state.h"

namespace edgedecode {

// Files of tiles by path: models that read the same one share it.
using MappedFiles = std::map<std::string, std::shared_ptr<Mapped>>;

// What a drafting head's rows read from pending row `first` on: features, or its own output for the row before.
struct HeadRows {
  const float* values;
  bool features;
  int first;
};

class OnnxModel : public LanguageModel {
 public:
  // The engine must be loaded. Leases before it allocates.
  OnnxModel(const PackedModel& facts, int threads, Budget& budget, MappedFiles& files);
  const ModelCard& card() const override { return card_; }
  std::unique_ptr<State> new_state(int capacity, int rows) override;
  Rows forward(const Ids& tokens, State& state, int rows) override { return append(tokens, state, rows, nullptr); }
  Rows draft(const Ids& tokens, State& state, const float* features, const float* hidden, float* out) override;

 private:
  Rows append(const Ids& tokens, State& state, int rows, const HeadRows* read);
  friend class OnnxState;
  void drop(OnnxState& state);
  std::shared_ptr<const Adapter> adapter(const PackedAdapter& facts);
  void bind_adapter(OnnxState& state, bool on);
  std::unique_ptr<FeatureRows> new_features(int start);
  void check_tokens(const Ids& tokens) const;
  void hold_rows(int count);
  std::unique_ptr<Binding> bind(OnnxState& state);
  void pass(OnnxState& state, const int32_t* tokens, int width, int start, int rows, int slot, const HeadRows* read);
  void bind_head(OnnxState& state, int width, int start, int rows, const HeadRows* read);

  const PackedModel facts_;
  ModelCard card_;
  const int threads_;
  Budget& budget_;
  std::vector<Lease> leases_;
  Lease logits_lease_;
  std::vector<std::pair<std::string, std::shared_ptr<Mapped>>> tiles_;
  std::map<std::string, std::weak_ptr<const Adapter>> adapters_;  // one copy of what states use
  std::unique_ptr<Session> session_;
  std::mutex running_;          // held during a pass, and while states come and go
  std::multiset<int> held_;     // rows of logits that each open state needs
  std::vector<int64_t> ids_, positions_, picked_;
  int32_t last_slot_ = 0, total_ = 0;
  std::unique_ptr<float[]> logits_;
  int logits_rows_ = 0;
  std::vector<float> after_, nothing_;  // a head's output; what it reads in `forward`
};

}  // namespace edgedecode
