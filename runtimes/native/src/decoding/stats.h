// Counts and times of one answer, as edgedecode/decoding/stats.py.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../json.h"
#include "verify.h"

namespace edgedecode {

using Clock = std::function<double()>;  // seconds

struct TimeSplit {
  double draft = 0, verify = 0, sample = 0, host = 0;
  double total() const { return draft + verify + sample + host; }
};

// Times the steps of a round, each from the end of the one before.
class Stopwatch {
 public:
  explicit Stopwatch(const Clock& clock) : clock_(clock), last_(clock()) {}
  void start() {
    round = TimeSplit();
    last_ = clock_();
  }
  void lap(double TimeSplit::*step) {
    const double now = clock_();
    round.*step = round.*step + now - last_;
    last_ = now;
  }
  TimeSplit round;

 private:
  const Clock& clock_;
  double last_;
};

struct DrafterCount {
  int64_t rounds = 0, proposed = 0, accepted = 0;
  int64_t cut_short = 0;  // rounds that ended with a token outside its trimmed vocabulary
};

struct Stats {
  std::string mode = "plain", stop_string;
  uint64_t seed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0;
  bool context_full = false;
  int64_t dropped_turns = 0, reread_tokens = 0;
  int64_t rounds = 0, proposed = 0, accepted = 0, corrections = 0, bonuses = 0, ended = 0, tokens = 0;
  double time_to_first_token = 0, prefill_seconds = 0;
  TimeSplit time;
  int64_t planned_nbytes = 0, peak_nbytes = 0;
  std::vector<int64_t> survival, reached;
  std::vector<std::pair<std::string, DrafterCount>> drafters;  // in the order of their first drafts
  std::vector<std::pair<std::string, int64_t>> plain_rounds;   // rounds without a draft, by reason

  void count(const Verdict& verdict, const std::string& why);
  void prefilled(double seconds);
  void spend(const TimeSplit& round, bool plain);
  void spend_host(double seconds);
  Json as_json() const;

 private:
  std::optional<double> plain_tokens_per_second() const;
  int64_t first_tokens_ = 0;          // tokens that came together first
  std::vector<double> plain_times_;  // seconds of each round whose pass had one row
  bool was_plain_ = false;
};

}  // namespace edgedecode
