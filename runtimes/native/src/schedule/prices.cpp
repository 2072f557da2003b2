#include "prices.h"

#include <algorithm>
#include <cmath>

namespace edgedecode {

// A row that costs so many times the mean of those before it is dearer for the kernels' tiles, not by noise.
constexpr double kKnee = 1.5;

double Prices::host(const std::string& drafter, bool least) const {
  const Recent* known = costs_->host_of(drafter);
  if (!known || !known->value) {
    if (drafter == kNoDrafter) return guess::kHost;
    return host(kNoDrafter) + (drafter == kAsked ? 0.0 : guess::kDraftSeconds / seconds);
  }
  return least && known->few() && drafter != kAsked ? std::min(*known->value, host(kAsked)) : *known->value;
}

// A draft model's measured cost. Where there is none, what is assumed; with few, and `least`, at most a guess.
double Prices::drafting(const std::string& drafter, Recent DraftCost::*part, double assumed, double most) const {
  const auto known = costs_->drafts.find(drafter);
  if (known == costs_->drafts.end() || !(known->second.*part).value) return assumed;
  const Recent& found = known->second.*part;
  return found.few() ? std::min(*found.value, most) : *found.value;
}

double Prices::step(const std::string& drafter, bool least) const {
  const double more = guess::kStepSeconds / seconds;
  return drafting(drafter, &DraftCost::step, guess::kStep + more, least ? 2 * guess::kStep + more : INFINITY);
}

double Prices::read(const std::string& drafter, bool least) const {
  return drafting(drafter, &DraftCost::read, guess::kRead, least ? guess::kRead : INFINITY);
}

int Prices::with_slack(int length) const {
  const double row = table_->c(length + 2) - table_->c(length + 1);
  return length + (row * (length - 1) <= kKnee * (table_->c(length + 1) - curve_[2]));
}

double Prices::round(int length, const Rate& rate) const {
  const int width = length + 1;
  const double rows = rate.least ? table_->curve(true)[std::min(width, kWidest)] : table_->c(width);
  return (rows + length * rate.step + rate.host) / plain;
}

BestLength Prices::best_length(const std::vector<double>& alive, int longest, const Rate& rate) const {
  const CostTable::ByWidth& curve = rate.least ? table_->curve(true) : curve_;
  BestLength best;
  double tokens = 1, cost = curve[1] + rate.host, drafted = 1;
  for (int length = 1; length <= static_cast<int>(alive.size()); ++length) {
    const double chance = alive[length - 1];
    tokens += chance;
    cost += (curve[length + 1] - curve[length] + rate.step) * drafted;
    const double speed = tokens / cost;
    drafted = 1 - rate.stops * (1 - chance);
    if (speed > best.speed_up) {
      best = {length, speed};
    } else if (tokens + chance * (longest - length) < best.speed_up * cost) {
      break;  // even if the rest were as likely, and free
    }
  }
  best.speed_up *= plain;
  return best;
}

}  // namespace edgedecode
