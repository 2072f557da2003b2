// The costs of a pack's rounds on this device, as in schedule/cost_table.py, draft_cost.py and cost_model.py: passes by
// width and context length, draft models, host overhead. The unit is a baseline step, a pass over one token.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "../decoding/policy.h"
#include "medians.h"

namespace edgedecode {

constexpr int kWidest = kMaxDraft + 1;  // rows of the widest pass that is measured separately
constexpr int kEnough = 8;              // passes over which the cost of a width is averaged
constexpr double kPriorWeight = 0.01;
constexpr double kOutlier = 1.5;
constexpr int kRefit = 16;
constexpr int kContextBuckets = 4;
int context_bucket(int context_tokens);
int drift_of(std::optional<double> ratio);  // 1: the machine is slower than predicted, -1: faster

// What is assumed before anything is measured: schedule/draft_cost.py.
namespace guess {
constexpr double kStep = 0.15, kRead = 0.02, kHost = 0.01, kStepSeconds = 60e-6, kDraftSeconds = 300e-6;
}

// Costs of the passes in one context bucket: T(n) = step · (1 + β(n)·(n - 1)).
class CostTable {
 public:
  using ByWidth = std::array<double, kWidest + 1>;

  explicit CostTable(std::optional<double> step = {}, const std::map<int, double>& beta = {}, int64_t plain = -1);
  // c by width, 0 to kWidest. least: an optimistic one, the lower the fewer passes near a width were measured.
  const ByWidth& curve(bool least = false);
  double c(int width);
  void restart() { plain_ = Recent(); }
  void doubt(bool loaded);
  bool has_moved();
  std::map<int, double> known_beta() const;
  void observe(int width, double seconds, int passes);
  bool is_due(int rounds, int most) const;

  std::optional<double> step;  // seconds
  int64_t plain = 0;           // baseline passes measured
  ByWidth beta{}, seen{};
  int fits = 0;

 private:
  void refit();
  void add_weights(ByWidth* known, ByWidth* moved, const ByWidth& prior) const;
  ByWidth fitted() const;

  Recent plain_;
  std::optional<double> first_step_;
  bool doubted_ = false;  // whether there is a kept β, which is doubted
  ByWidth kept_{}, curve_{}, least_{};
  bool has_curve_ = false;
  int stale_ = 0, wide_ = 0;
};

// A draft model's step, and its prefill per token.
struct DraftCost {
  explicit DraftCost(std::optional<double> step = {}, std::optional<double> read = {})
      : step(step, kSteady), read(read, kSteady) {}
  void observe(const RoundCost& cost, double plain_step);

  Recent step, read;
};

class CostModel {
 public:
  CostTable& table(int context_tokens);
  void doubt(bool loaded = false);
  // Learns from a round; returns whether the machine's speed has changed since the costs were last doubted.
  bool observe(const RoundCost& cost, int context_tokens);
  // Records a round's ratio of measured to predicted time; returns the median of recent ones.
  double drifted(double ratio, const std::string& drafter);
  bool is_due(int rounds, int context_tokens);
  const Recent* host_of(const std::string& drafter) const;

  std::map<int, CostTable> tables;
  std::vector<int> order;  // of the tables' buckets, as they were first used
  std::map<std::string, DraftCost> drafts;
  std::map<std::string, Recent> host;
  Recent drift;
};

}  // namespace edgedecode
