#include "costs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../sampling/noise.h"

namespace edgedecode {
namespace {

// Reasons for these values: schedule/cost_table.py.
constexpr int kKnots = 6;
constexpr int kPriorWidths[kKnots] = {2, 3, 5, 9, 17, 33};
constexpr double kPriorBeta[kKnots] = {0.35, 0.38, 0.40, 0.42, 0.45, 0.45};
constexpr double kLeastBeta = 0.01, kMostBeta = 1.0, kAgeing = 0.998, kReach = 0.15;
constexpr int kMeasure = 64;
constexpr int kContexts[kContextBuckets - 1] = {512, 2048, 8192};

using ByWidth = CostTable::ByWidth;

const ByWidth& prior_beta() {
  static const ByWidth found = [] {
    ByWidth beta{};
    for (int width = 0; width <= kWidest; ++width) {
      int knot = 0;
      while (knot < kKnots - 2 && width >= kPriorWidths[knot + 1]) ++knot;
      const double slope =
          (kPriorBeta[knot + 1] - kPriorBeta[knot]) / (kPriorWidths[knot + 1] - kPriorWidths[knot]);
      beta[width] = width <= kPriorWidths[0]              ? kPriorBeta[0]
                    : width >= kPriorWidths[kKnots - 1] ? kPriorBeta[kKnots - 1]
                                                        : slope * (width - kPriorWidths[knot]) + kPriorBeta[knot];
    }
    return beta;
  }();
  return found;
}

// The weight at each width of a measurement at each other; symmetric.
const std::array<ByWidth, kWidest + 1>& kernel() {
  static const auto found = [] {
    std::array<ByWidth, kWidest + 1> weights{};
    for (int a = 0; a <= kWidest; ++a)
      for (int b = 0; b <= kWidest; ++b) {
        const double low = std::max(1, std::min(a, b)), high = std::max(1, std::max(a, b));
        const double distance = logarithm(low / high) / kReach;
        weights[a][b] = 1 / (1 + distance * distance);
      }
    return weights;
  }();
  return found;
}

}  // namespace

int context_bucket(int context_tokens) {
  return static_cast<int>(std::lower_bound(kContexts, kContexts + kContextBuckets - 1, context_tokens) - kContexts);
}

int drift_of(std::optional<double> ratio) {
  static const double drift = std::sqrt(kOutlier);
  return ratio ? (*ratio > drift) - (*ratio < 1 / drift) : 0;
}

CostTable::CostTable(std::optional<double> step, const std::map<int, double>& beta, int64_t plain)
    : step(step), plain(plain >= 0 ? plain : step ? 1 : 0), plain_(step) {
  for (const auto& each : beta) this->beta[each.first] = each.second, seen[each.first] = 1;
}

const ByWidth& CostTable::curve(bool least) {
  if (!has_curve_) refit();
  return least ? least_ : curve_;
}

double CostTable::c(int width) {
  const ByWidth& found = curve();
  return width <= kWidest ? found[width] : found[kWidest] * width / kWidest;
}

void CostTable::doubt(bool loaded) {
  if (std::any_of(seen.begin() + 2, seen.end(), [](double each) { return each != 0; })) {
    const ByWidth now = fitted();
    for (int width = 0; width <= kWidest; ++width)
      kept_[width] = std::min(now[width], loaded ? prior_beta()[width] : kMostBeta);
    doubted_ = true;
    seen.fill(0);
  }
  if (loaded) restart(), plain = 0;  // so a baseline pass is due
  has_curve_ = false;
  wide_ = 0;
  first_step_ = step;
}

bool CostTable::has_moved() {
  if (plain_.few() || !step) return false;
  if (!first_step_ || *first_step_ == 0) first_step_ = step;
  return drift_of(*step / *first_step_) != 0;
}

std::map<int, double> CostTable::known_beta() const {
  std::map<int, double> known;
  if (doubted_)
    for (int width : kPriorWidths) known[width] = kept_[width];
  for (int width = 2; width <= kWidest; ++width)
    if (seen[width] != 0) known[width] = beta[width];
  return known;
}

void CostTable::observe(int width, double seconds, int passes) {
  if (!(0 < seconds && seconds < std::numeric_limits<double>::infinity())) return;
  if (width == 1) {
    for (int i = 0; i < std::min(passes, kLatest / 2 + 1); ++i) plain_.observe(seconds);  // so many decide the median
    ++plain;
    for (double& each : seen) each *= kAgeing;
    if (plain % (4 * kMeasure) == 0) has_curve_ = false;
    if (step || !plain_.few()) step = plain_.value;
    return;
  }
  if (!step) return;
  const double predicted = *step * c(width);
  width = std::min(width, kWidest);
  // Other work makes a pass slower, never faster, and what is doubted bounds nothing.
  if (!doubted_ || seen[width] != 0) seconds = std::min(seconds, predicted * kOutlier);
  for (double& each : seen) each *= kAgeing;
  seen[width] += 1;
  const double weight = std::max(1.0 / kEnough, 1 / seen[width]);
  beta[width] += weight * ((seconds / *step - 1) / (width - 1) - beta[width]);
  ++stale_;
  ++wide_;
  if (stale_ >= std::min<double>(kRefit, wide_ / 4.0)) has_curve_ = false;
}

bool CostTable::is_due(int rounds, int most) const {
  return !step || !plain || rounds >= std::min<double>(most, std::pow(2.0, std::min<int64_t>(plain, 6)));
}

// Adds up, measured width by measured width: the sums are those of schedule/cost_table.py, in the same order.
void CostTable::add_weights(ByWidth* known, ByWidth* moved, const ByWidth& prior) const {
  for (int measured = 2; measured <= kWidest; ++measured) {
    const double passes = std::min<double>(seen[measured], kEnough), ratio = beta[measured] / prior[measured];
    for (int width = 0; width <= kWidest; ++width) {
      const double weight = kernel()[measured][width] * passes;
      (*known)[width] += weight;
      (*moved)[width] += weight * ratio;
    }
  }
}

ByWidth CostTable::fitted() const {
  ByWidth prior = doubted_ ? kept_ : prior_beta(), known{}, moved{}, found{};
  for (double& each : prior) each = std::max(each, kLeastBeta);
  add_weights(&known, &moved, prior);
  for (int width = 0; width <= kWidest; ++width)
    found[width] = prior[width] * ((kPriorWeight + moved[width]) / (kPriorWeight + known[width]));
  return found;
}

void CostTable::refit() {
  stale_ = 0;
  ++fits;
  ByWidth known{}, spare{}, above{}, below{};
  ByWidth one;
  one.fill(1);
  add_weights(&known, &spare, one);
  const ByWidth found = fitted();
  for (int width = 0; width <= kWidest; ++width) {
    above[width] = below[width] = std::max(1.0, 1.0 + found[width] * std::max(0, width - 1));
    if (width) above[width] = std::max(above[width], above[width - 1]);
  }
  for (int width = kWidest - 1; width >= 0; --width) below[width] = std::min(below[width], below[width + 1]);
  for (int width = 0; width <= kWidest; ++width) {
    curve_[width] = (above[width] + below[width]) / 2;
    least_[width] = 1 + (curve_[width] - 1) * (1 - 0.5 / (1 + known[width]));
    // What is doubted may be wrong by any factor, until such a width is measured again.
    if (doubted_ && known[width] < 0.5)
      least_[width] = std::min(least_[width], 1 + 0.5 * prior_beta()[width] * std::max(0, width - 1));
  }
  has_curve_ = true;
}

void DraftCost::observe(const RoundCost& cost, double plain_step) {
  const double spent = cost.draft_seconds / plain_step;
  if (cost.read <= 2) return step.observe(spent / cost.steps());  // included in the first step
  if (cost.read <= kEnough) return;  // too few to distinguish the prefill from the steps' noise
  if (!step.value) step.observe(spent / (cost.steps() + (cost.read - 1) * guess::kRead / guess::kStep));
  read.observe(std::max(0.0, spent - cost.steps() * *step.value) / (cost.read - 1));
}

CostTable& CostModel::table(int context_tokens) {
  const int bucket = context_bucket(context_tokens);
  const auto found = tables.find(bucket);
  if (found != tables.end()) return found->second;
  const auto near = std::min_element(order.begin(), order.end(), [&](int a, int b) {
    return std::abs(a - bucket) < std::abs(b - bucket);
  });
  const CostTable made =
      near == order.end() ? CostTable() : CostTable(tables.at(*near).step, tables.at(*near).known_beta());
  order.push_back(bucket);
  return tables.emplace(bucket, made).first->second;
}

void CostModel::doubt(bool loaded) {
  for (auto& each : tables) each.second.doubt(loaded);
  for (auto& each : drafts) each.second.step.doubt(), each.second.read.doubt();
  for (auto& each : host) each.second.doubt();
  drift = Recent();
}

bool CostModel::observe(const RoundCost& cost, int context_tokens) {
  CostTable& measured = table(context_tokens);
  const int drifting = drift_of(drift.value);
  if (drifting && cost.width == 1 && measured.step && drift_of(cost.pass_seconds / *measured.step) == drifting) {
    measured.restart();
    drift = Recent();
  }
  measured.observe(cost.width, cost.pass_seconds, 1 + cost.repeats);
  if (!measured.step) return false;
  host.emplace(cost.drafter, Recent({}, kSteady)).first->second.observe(cost.host_seconds / *measured.step);
  if (cost.draft_seconds > 0) drafts.emplace(cost.drafter, DraftCost()).first->second.observe(cost, *measured.step);
  return measured.has_moved();
}

double CostModel::drifted(double ratio, const std::string& drafter) {
  const Recent* timed = host_of(drafter);
  if (!timed || timed->few()) return std::min(ratio, kOutlier);  // the prediction was a guess
  if (drift.few()) ratio = std::min(ratio, kOutlier);             // the median could be an interrupted round
  drift.observe(ratio);
  return *drift.value;
}

bool CostModel::is_due(int rounds, int context_tokens) {
  return table(context_tokens).is_due(rounds, drift_of(drift.value) ? kEnough : kMeasure);
}

const Recent* CostModel::host_of(const std::string& drafter) const {
  const auto found = host.find(drafter);
  return found == host.end() ? nullptr : &found->second;
}

}  // namespace edgedecode
