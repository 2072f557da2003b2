// The chance that a drafted token is accepted, by drafter, match length and depth, as in schedule/acceptance.py.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../decoding/policy.h"

namespace edgedecode {

constexpr int kDepths = 8;        // with separate counts; deeper positions share the last one
constexpr int kMatchBuckets = 7;  // see kPriors
int match_bucket(int match);

// Decaying counts by depth; the stored values must be multiplied by `scale`.
struct Counts {
  using Depths = std::array<double, kDepths>;
  Depths accepted{}, tried{};
  double scale = 1;
  int64_t at = 0;  // the token at which they last aged
  int failed = 0;  // drafts in a row that were rejected at once

  void settle();
  void fade(double share);
  void age(int64_t now, double share);
  void add(const Score& score, double share);
};

using CountsKey = std::pair<std::string, int>;  // drafter and match bucket
using CountsTable = std::map<CountsKey, Counts>;

// Outcomes of the drafts of all answers.
class History {
 public:
  void doubt();
  History& under(const std::string& kind);
  Counts& of(const CountsKey& key);

  CountsTable tables;
  std::map<std::string, double> stops;  // share of failed drafts that the model ended itself
  int64_t tokens = 0;
  std::map<std::string, History> kinds;
};

// One session's estimates: this answer's drafts, with the history as their prior.
class Acceptance {
 public:
  explicit Acceptance(History* plain) : history_(plain), plain_(plain), tables_(&kinds_[""]) {}
  void begin(const std::string& kind);
  void passed(int tokens) { history_->tokens += tokens; }
  void add(const Score& score);
  void ended(const std::string& drafter, bool stopped);
  double stops(const std::string& drafter) const;
  int counted(const std::string& drafter) const;
  // For each position, the chance that the draft is accepted up to it; ends once that is negligible.
  std::vector<double> curve(const std::string& drafter, int length, int match = 0, double hope = 0);

 private:
  Counts& of(const CountsKey& key);

  History *history_, *plain_;
  std::map<std::string, CountsTable> kinds_;
  CountsTable* tables_;
  std::map<std::string, int> counted_;
};

}  // namespace edgedecode
