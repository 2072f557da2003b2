// Drafters with a model, as edgedecode/drafters/model_drafter.py and confidence.py.
#pragma once

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../decoding/drafts.h"
#include "../decoding/verify.h"
#include "model_state.h"

namespace edgedecode {

// The chance that a draft model's token is accepted, learnt from its drafts: a logistic regression over its probability
// as a logit, its margin to the second, and its position.
class Confidence {
 public:
  using Features = std::array<double, 3>;
  static Features features(const Leading& leading, int position);
  double chance(const Features& seen) const;
  // A step for each token up to the first rejected one; later ones were not judged.
  void learn(const std::vector<Features>& seen, size_t accepted);

 private:
  Features weights_{1, 0, 0};
  int64_t judged_ = 0;
};

// The parts of a session that a drafter uses; all outlive it.
struct DraftSetting {
  const SamplingOptions* sampling;
  const Noise* noise;  // the target's: the same noise mostly samples the same id from two similar distributions
  const std::set<int32_t>* ends;
  int vocabulary_size = 0, capacity = 0;
};

// Proposes the tokens that the target's noise samples from the draft model's rows; greedy: its likeliest ones.
class ModelDrafter : public Drafter {
 public:
  ModelDrafter(std::string name, LanguageModel* model, std::unique_ptr<ModelState> state, const DraftSetting& setting);
  const std::string& name() const override { return name_; }
  bool free() const override { return false; }
  void begin(const Text& context) override;
  void read_with(const AdapterSpan& span) override { state_->read_with(span); }
  int unread(const Ids& context) override { return state_->unread(context); }
  Draft propose(const Ids& context, int limit, const Plan& plan) override;
  void observe(const Ids& context, const Verdict& verdict) override;

 private:
  // The last proposal, with a token that was dropped for low confidence.
  struct Guess {
    size_t at = 0;
    bool counts = false;  // whether confidence may have ended it
    Ids tokens;
    std::vector<Confidence::Features> seen;
  };
  bool add(Draft* draft, const float* row, double floor, double* alive);

  const std::string name_;
  const DraftSetting setting_;
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<TrimmedVocabulary> vocabulary_;
  Sampler sampler_;
  size_t sampler_length_ = 0;
  Confidence confidence_;
  Guess guess_;
};

}  // namespace edgedecode
