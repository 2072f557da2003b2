// Chooses each round's drafter and draft length by expected speed-up, as schedule/scheduler.py: plain decoding is one
// of the arms. Deterministic given the calls: no clock, no input or output.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../decoding/policy.h"
#include "experience.h"
#include "prices.h"

namespace edgedecode {

struct SchedulerOptions {
  int draft_max = 16;  // 1 to kMaxDraft
  std::set<std::string> free;       // drafters without a model
  std::vector<std::string> models;  // drafters with one
};

class Scheduler : public Policy {
 public:
  Scheduler(Experience* experience, SchedulerOptions options);
  int begin(const std::string& kind) override;
  Plan plan(const Signals& signals) override;
  void observe(const RoundCost& cost, const std::vector<Score>& scores) override;

 private:
  // A way to draft the next round, with its speed-up over plain decoding, prefill included.
  struct Arm {
    double speed_up = 0;
    Plan plan;
    int longest = 0;
    std::vector<double> alive;  // of a lookup: the chance that the draft is accepted up to each position
    int unread = 0;             // tokens of its model's prefill besides its first step
    int horizon = 1;            // expected further tokens, which share the prefill's cost
  };
  using Basis = std::tuple<int, double, double, int, int, int>;

  bool is_model(const std::string& name) const;
  const Plan* best(const std::vector<Arm>& arms);
  std::optional<Plan> explore(const std::vector<Arm>& arms, const Prices& prices);
  std::optional<Plan> probe(const std::vector<Offer>& offers, int room) const;
  Arm of_offer(const Offer& offer, int room, const Prices& prices);
  Arm of_model(const std::string& name, int unread, const Signals& signals, int room, const Prices& prices);
  bool model_pays();
  BestLength of_draft_model(const std::string& name, int longest, const Prices& prices, const Rate& rate);
  void settle(const RoundCost& cost);
  Plan plain();
  int rest(double asking) const;
  double asking();

  Experience* experience_;
  CostModel& costs_;
  Ledger* ledger_;
  Acceptance acceptance_;
  const SchedulerOptions options_;
  std::string current_;  // the arm in use
  double gained_ = 0;    // baseline rounds that it gained since it was chosen, without its prefill
  double won_ = 0;       // that lookups gained in this answer, less the cost of asking them in vain since
  std::optional<Prices> prices_;
  int context_ = 1;
  int64_t emitted_ = 0, answered_ = 0;  // tokens of this answer, and of all
  int unmeasured_ = 0;                  // rounds since the last baseline pass
  int64_t missed_ = 0, misses_ = 0;     // right tokens of lookups since the last draft, and those lookups
  int64_t doubted_at_ = 0;
  std::map<std::pair<std::string, bool>, std::pair<Basis, BestLength>> remembered_;
  bool probing_ = false;
  int64_t patience_;     // missed tokens until the next probe
  int64_t models_from_ = 0;  // `answered_` from which draft models are considered again
  bool cold_ = false;    // whether this answer began with the first passes of the process
};

}  // namespace edgedecode
