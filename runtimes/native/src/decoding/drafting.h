// The drafting side of an answer: asks the drafters, lets the policy choose, and reports the outcome to both, as
// edgedecode/decoding/drafting.py and offers.py.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "constraint.h"
#include "drafts.h"
#include "policy.h"
#include "stats.h"
#include "verify.h"

namespace edgedecode {

// Chains that were proposed at a position and that the text has not contradicted yet.
class OpenOffers {
 public:
  void add(const std::string& drafter, const Draft& draft, size_t at);
  // The scores of those that the text matched completely or contradicted, and of evicted ones.
  std::vector<Score> settle(const Ids& tokens);
  void clear() { open_.clear(); }

 private:
  struct Open {
    size_t at;
    Draft draft;
  };
  std::vector<std::pair<std::string, std::vector<Open>>> open_;
};

// Rounds that are plain and ask no drafter; now and then it looks whether the text copies itself.
class Rest {
 public:
  void begin(const Plan& plan, int match);  // match: the longest of this round's proposals
  bool goes_on(const Ids& tokens, Drafter* watching);
  void spend(double pass, double host) { passes_.push_back(pass), hosts_.push_back(host); }
  // What its rounds until now cost, which it then forgets.
  std::optional<RoundCost> cost();
  void end() { left_ = 0; }

 private:
  static constexpr int kCopied = 5, kWatch = 8, kMostBetween = 32;
  int left_ = 0, next_look_ = 0, between_ = kWatch, copied_ = kCopied;
  std::vector<double> passes_, hosts_;
};

class Drafting {
 public:
  // offers: ask every free drafter each round and score its proposal, which a policy needs to choose among them.
  Drafting(std::vector<std::unique_ptr<Drafter>> drafters, std::unique_ptr<Policy> policy, bool offers, Clock clock);
  ~Drafting() { close(); }
  void begin(const Text& tokens, const std::string& kind);
  void read_with(const AdapterSpan& span) {
    for (const auto& drafter : drafters_) drafter->read_with(span);
  }
  // The next round's draft of at most `room` tokens. A resting round only decrements a counter.
  Draft propose(const Ids& tokens, int room, Constraint* constraint);
  void observe(const Ids& tokens, const Verdict& verdict);
  void spent(const Verdict& verdict, double pass_seconds, double host_seconds);
  // Releases the drafters; a running answer goes on without drafts.
  void close();
  std::string names() const;  // joined by "+"
  const Plan& plan() const { return plan_; }

 private:
  // A round in which drafters are asked.
  struct Round {
    int limit = 0, returned = 0, read = 0;  // returned: tokens of the draft before a constraint cut it
    double draft_seconds = 0;
    std::string drafter = kAsked;
  };
  using Drafts = std::vector<std::pair<Drafter*, Draft>>;
  Draft drafted(const std::string& name, const Drafts& offered, Round* round);
  Signals signals(const Drafts& drafts, int room);
  void end_rest();

  std::vector<std::unique_ptr<Drafter>> drafters_;
  std::unique_ptr<Policy> policy_;
  const bool offering_;
  const Clock clock_;
  Plan plan_;
  OpenOffers offers_;
  Rest rest_;
  Drafter* watching_ = nullptr;
  std::optional<Round> round_;
  Text tokens_;
  double learning_seconds_ = 0;  // that the policy took to learn from the previous round
};

}  // namespace edgedecode
