// Medians of the last few measurements, and the exploration's accounts.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace edgedecode {

constexpr int kLatest = 5;               // passes of which the baseline step is the median
constexpr int kSteady = 2 * kLatest - 1;  // of host overhead and draft steps, which follow after the step

inline double lower_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

class Recent {
 public:
  explicit Recent(std::optional<double> value = {}, int most = kLatest) : value(value), most_(most) { doubt(); }
  // Whether the first measurements, perhaps cold, can still dominate the median.
  bool few() const { return static_cast<int>(latest_.size()) <= most_ / 2; }
  // Counts everything so far as one measurement.
  void doubt() {
    latest_.clear();
    if (value) latest_.push_back(*value);
  }
  void observe(double measured) {
    latest_.push_back(measured);
    if (static_cast<int>(latest_.size()) > most_) latest_.erase(latest_.begin());
    value = lower_median(latest_);
  }

  std::optional<double> value;

 private:
  std::vector<double> latest_;
  int most_;
};

// Budgets of exploration in baseline rounds, an account per drafter (conservative exploration, 1602.04282).
class Ledger {
 public:
  static constexpr double kGrant = 4.0, kIncome = 0.0075, kMost = 3 * kGrant, kOverdraft = 0.25, kProbe = kGrant / 2;

  Ledger& under(const std::string& kind) { return kind.empty() ? *this : kinds[kind]; }
  double funds(const std::string& account) { return balances.emplace(account, kGrant).first->second; }
  void doubt(double most = kMost) {
    for (auto& each : balances) each.second = std::min(most, std::max(kProbe, each.second));
    for (auto& each : kinds) each.second.doubt(most);
  }
  void earn(int tokens) {
    for (auto& each : balances) each.second = std::min(kMost, each.second + kIncome * tokens);
  }
  void settle(const std::string& account, double gain) {
    const double balance = funds(account) + gain;
    balances[account] = std::max(-kOverdraft, std::min(kMost, balance));
  }

  std::map<std::string, double> balances;
  std::map<std::string, Ledger> kinds;
  int empty_rounds = 0;  // in a row in which drafters were asked and no draft was planned
};

}  // namespace edgedecode
