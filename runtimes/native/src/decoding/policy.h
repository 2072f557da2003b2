// The interface of a drafting policy, as in edgedecode/decoding/policy.py: signals, scores and costs in, plans out.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace edgedecode {

constexpr int kMaxDraft = 64;  // longest draft of any policy, in tokens
constexpr const char* kNoDrafter = "none";
constexpr const char* kAsked = "asked";  // drafters were asked, and nothing was drafted
constexpr const char* kNoSpeedUp = "no speed-up expected";

// A free drafter's proposal: its length, and how long the text is that a lookup found again.
struct Offer {
  std::string drafter;
  int length = 0, match = 0;
};

// What became of a proposal once the tokens at its positions are known. accepted == length is censored.
struct Score {
  std::string drafter;
  int length = 0, accepted = 0, match = 0;
};

struct RoundCost {
  int width = 1;
  double pass_seconds = 0, host_seconds = 0;
  std::string drafter = kNoDrafter;
  int drafted = 0, accepted = 0;
  int read = 0;  // tokens that the drafter's model prefilled before it proposed
  double draft_seconds = 0;
  int match = 0;
  int cut = 0;           // drafted tokens that a grammar refuses
  bool stopped = false;  // the drafter's model ended the draft for want of confidence
  int repeats = 0;       // further plain rounds, of which the times are the median

  int steps() const { return std::max(1, drafted + cut + stopped); }
};

struct Signals {
  int context_tokens = 0, remaining_tokens = 0;
  std::vector<Offer> offers;
  std::vector<std::pair<std::string, int>> unread;  // by drafter with a model: tokens it would prefill first
};

struct Plan {
  int draft_max = 0;     // 0: plain decoding
  std::string drafter;   // empty: the first one
  double floor = 0;      // a model stops when the chance that all of its draft is accepted falls below
  int read_max = 0;      // a model further behind prefills only so many of the last tokens; 0: all
  int rest = 0;          // plain rounds after this one in which no drafter is asked
  std::string reason;
};

// Deterministic given its inputs: no clock, no input or output.
class Policy {
 public:
  virtual ~Policy() = default;
  // Starts an answer of a kind (adapter, grammar); returns how many of its first rounds are plain.
  virtual int begin(const std::string& kind) = 0;
  virtual Plan plan(const Signals& signals) = 0;
  virtual void observe(const RoundCost& cost, const std::vector<Score>& scores) = 0;
};

class FixedLength : public Policy {
 public:
  explicit FixedLength(int draft_max) : draft_max_(draft_max) {}
  int begin(const std::string&) override { return 0; }
  Plan plan(const Signals& signals) override {
    Plan plan;
    plan.draft_max = std::min(draft_max_, signals.remaining_tokens - 1);
    plan.reason = "fixed";
    return plan;
  }
  void observe(const RoundCost&, const std::vector<Score>&) override {}

 private:
  const int draft_max_;
};

}  // namespace edgedecode
