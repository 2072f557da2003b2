#include "acceptance.h"

#include <algorithm>
#include <cmath>

namespace edgedecode {
namespace {

// Upper bounds of match lengths with their prior chances. Values and reasons of all constants: schedule/acceptance.py.
constexpr int kLongest[kMatchBuckets - 1] = {0, 1, 2, 4, 8, 16};
constexpr double kPriors[kMatchBuckets] = {0.5, 0.25, 0.35, 0.5, 0.7, 0.85, 0.92};
constexpr double kPriorRounds = 2.0, kTextFade = 0.9, kHistoryFade = 0.99, kDoubt = 0.99, kCarried = 0.25;
constexpr double kDoubted = 0.5, kMinScale = 1e-6, kMinChance = 0.02;
constexpr int kStreak = 3;

}  // namespace

int match_bucket(int match) {
  return static_cast<int>(std::lower_bound(kLongest, kLongest + kMatchBuckets - 1, match) - kLongest);
}

void Counts::settle() {
  for (int depth = 0; depth < kDepths; ++depth) accepted[depth] *= scale, tried[depth] *= scale;
  scale = 1;
}

void Counts::fade(double share) {
  scale *= share;
  if (scale < kMinScale) settle();
}

void Counts::age(int64_t now, double share) {
  if (now <= at) return;
  fade(std::pow(share, static_cast<double>(now - at)));
  at = now;
}

void Counts::add(const Score& score, double share) {
  fade(share);
  const double one = 1 / scale;
  for (int index = 0; index < std::min(score.accepted + 1, score.length); ++index) {
    const int depth = std::min(index, kDepths - 1);
    tried[depth] += one;
    if (index < score.accepted) accepted[depth] += one;
  }
}

void History::doubt() {
  for (auto& each : tables) {
    Counts& counts = each.second;
    counts.settle();
    const double most = *std::max_element(counts.tried.begin(), counts.tried.end());
    counts.fade(std::min(1.0, kDoubted / std::max(kMinScale, most)));
  }
  for (auto& each : kinds) each.second.doubt();
}

History& History::under(const std::string& kind) {
  if (kind.empty()) return *this;
  const auto found = kinds.find(kind);
  if (found != kinds.end()) return found->second;
  History& made = kinds[kind];  // starts with a share of the history of no kind
  for (auto& each : tables) {
    each.second.settle();
    Counts& counts = made.tables[each.first];
    counts.accepted = each.second.accepted;
    counts.tried = each.second.tried;
    counts.fade(kCarried);
  }
  made.stops = stops;
  return made;
}

Counts& History::of(const CountsKey& key) {
  Counts& counts = tables[key];
  counts.age(tokens, std::pow(kDoubt, 0.1));
  return counts;
}

void Acceptance::begin(const std::string& kind) {
  history_ = &plain_->under(kind);
  counted_.clear();
  tables_ = &kinds_[kind];
  for (auto& each : *tables_) each.second.fade(kCarried);
}

Counts& Acceptance::of(const CountsKey& key) {
  Counts& counts = (*tables_)[key];
  counts.age(history_->tokens, kDoubt);
  return counts;
}

void Acceptance::add(const Score& score) {
  if (score.length <= 0) return;
  ++counted_[score.drafter];
  const CountsKey key{score.drafter, match_bucket(score.match)};
  Counts& counts = of(key);
  counts.failed = score.accepted ? 0 : counts.failed + 1;
  if (counts.failed >= kStreak)
    for (double& count : counts.accepted) count *= kTextFade * kTextFade;
  counts.add(score, kTextFade);
  history_->of(key).add(score, kHistoryFade);
}

void Acceptance::ended(const std::string& drafter, bool stopped) {
  const double known = stops(drafter);
  history_->stops[drafter] = known + (stopped - known) * (1 - kTextFade);
}

double Acceptance::stops(const std::string& drafter) const {
  const auto found = history_->stops.find(drafter);
  return found == history_->stops.end() ? 0.0 : found->second;
}

int Acceptance::counted(const std::string& drafter) const {
  const auto found = counted_.find(drafter);
  return found == counted_.end() ? 0 : found->second;
}

std::vector<double> Acceptance::curve(const std::string& drafter, int length, int match, double hope) {
  const CountsKey key{drafter, match_bucket(match)};
  const Counts &old = history_->of(key), &now = of(key);
  double base = kPriors[key.second], above = -1, chance = 0, alive = 1;
  std::vector<double> found;
  for (int depth = 0; depth < length; ++depth) {
    if (depth < kDepths) {
      const double known = old.tried[depth] * old.scale + kPriorRounds;
      const double tried = now.tried[depth] * now.scale + kPriorRounds;
      base = (old.accepted[depth] * old.scale + kPriorRounds * base) / known;
      // The history at this depth and this answer one depth above: acceptance within a draft is correlated.
      const double prior = above < 0 ? base : (base + above) / 2;
      chance = above = (now.accepted[depth] * now.scale + kPriorRounds * prior) / tried;
      if (hope != 0) {
        const double share = kPriorRounds / tried;
        double variance = above * (1 - above) / (tried + 1);
        variance += base * (1 - base) / (known + 1) * (share * share);
        chance = std::min(1.0, above + hope * std::sqrt(variance));
      }
    }
    alive *= chance;
    found.push_back(alive);
    if (alive < kMinChance) break;
  }
  return found;
}

}  // namespace edgedecode
