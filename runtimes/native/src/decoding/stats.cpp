#include "stats.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace edgedecode {
namespace {

constexpr size_t kLeastMeasured = 5;  // plain rounds, and drafted ones, of a measured speed-up

template <class Value>
Value& of(std::vector<std::pair<std::string, Value>>* values, const std::string& name) {
  for (auto& each : *values)
    if (each.first == name) return each.second;
  values->emplace_back(name, Value());
  return values->back().second;
}

double rounded(double value) {  // to six digits after the point
  char text[64];
  std::snprintf(text, sizeof text, "%.6f", value);
  return std::strtod(text, nullptr);
}

Json optional(const std::optional<double>& value) { return value ? Json(rounded(*value)) : Json(); }

Json list(const std::vector<int64_t>& values) { return Json::Array(values.begin(), values.end()); }

}  // namespace

void Stats::count(const Verdict& verdict, const std::string& why) {
  const int drafted = verdict.draft.size(), taken = verdict.accepted;
  if (first_tokens_ == 0) first_tokens_ = static_cast<int64_t>(verdict.tokens.size());
  if (drafted) {
    DrafterCount& mine = of(&drafters, verdict.draft.source);
    const TrimmedVocabulary* known = verdict.draft.vocabulary;
    ++mine.rounds;
    mine.proposed += drafted;
    mine.accepted += taken;
    mine.cut_short += known && verdict.outcome == Outcome::kCorrection && !known->has(verdict.tokens.back());
    proposed += drafted;
    accepted += taken;
    reached.resize(std::max<size_t>(reached.size(), drafted));
    survival.resize(reached.size());
    for (int index = 0; index < drafted; ++index) ++reached[index];
    for (int index = 0; index < taken; ++index) ++survival[index];
  } else if (!why.empty()) {
    ++of(&plain_rounds, why);
  }
  ++rounds;
  tokens += static_cast<int64_t>(verdict.tokens.size());
  corrections += verdict.outcome == Outcome::kCorrection;
  bonuses += verdict.outcome == Outcome::kBonus;
  ended += verdict.outcome == Outcome::kEnded;
}

void Stats::prefilled(double seconds) {
  prefill_seconds += seconds;
  if (time_to_first_token == 0) time_to_first_token = seconds;
  was_plain_ = false;
}

void Stats::spend(const TimeSplit& round, bool plain) {
  time.draft += round.draft;
  time.verify += round.verify;
  time.sample += round.sample;
  was_plain_ = plain;
  if (plain) plain_times_.push_back(round.verify + round.sample);
  spend_host(round.host);
}

void Stats::spend_host(double seconds) {
  time.host += seconds;
  if (was_plain_) plain_times_.back() += seconds;
}

std::optional<double> Stats::plain_tokens_per_second() const {
  int64_t drafted = 0;
  for (const auto& each : drafters) drafted += each.second.rounds;
  if (std::min<size_t>(plain_times_.size(), drafted) < kLeastMeasured) return {};
  std::vector<double> sorted = plain_times_;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  const double median = sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  return 1 / std::max(median, 1e-9);
}

Json Stats::as_json() const {
  const int64_t later = std::max<int64_t>(0, tokens - std::max<int64_t>(1, first_tokens_));
  const double speed = time.total() != 0 ? static_cast<double>(later) / time.total() : 0;
  const std::optional<double> plain = plain_tokens_per_second();
  Json::Object counts, reasons;
  for (const auto& each : drafters)
    counts.emplace_back(each.first, Json::Object{{"rounds", each.second.rounds},
                                                 {"proposed", each.second.proposed},
                                                 {"accepted", each.second.accepted},
                                                 {"cut_short", each.second.cut_short}});
  for (const auto& each : plain_rounds) reasons.emplace_back(each.first, each.second);
  const double prefilled = static_cast<double>(prompt_tokens - cached_tokens);
  const Json::Object spent = {{"draft", rounded(time.draft)}, {"verify", rounded(time.verify)},
                              {"sample", rounded(time.sample)}, {"host", rounded(time.host)}};
  return Json::Object{
      {"mode", mode}, {"seed", seed}, {"prompt_tokens", prompt_tokens}, {"cached_tokens", cached_tokens},
      {"context_full", context_full}, {"stop_string", stop_string}, {"dropped_turns", dropped_turns},
      {"reread_tokens", reread_tokens}, {"rounds", rounds}, {"proposed", proposed}, {"accepted", accepted},
      {"corrections", corrections}, {"bonuses", bonuses}, {"ended", ended}, {"verified_tokens", tokens},
      {"time_to_first_token", rounded(time_to_first_token)}, {"prefill_seconds", rounded(prefill_seconds)},
      {"planned_nbytes", planned_nbytes}, {"peak_nbytes", peak_nbytes ? Json(peak_nbytes) : Json()},
      {"survival", list(survival)}, {"reached", list(reached)}, {"drafters", counts}, {"plain_rounds", reasons},
      {"time_seconds", spent},
      {"acceptance_length", rounded(rounds ? static_cast<double>(tokens) / static_cast<double>(rounds) : 0)},
      {"speed_up", optional(plain && speed != 0 ? std::optional<double>(speed / *plain) : std::nullopt)},
      {"prefill_tokens_per_second", rounded(prefill_seconds != 0 ? prefilled / prefill_seconds : 0)},
      {"tokens_per_second", rounded(speed)}, {"plain_tokens_per_second", optional(plain)}};
}

}  // namespace edgedecode
