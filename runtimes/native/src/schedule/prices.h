// Prices of rounds from learnt costs, and the draft length with the best expected speed-up: schedule/prices.py.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "costs.h"

namespace edgedecode {

struct Rate {
  double step = 0, host = 0;
  bool least = false;  // with optimistic costs
  double stops = 0;    // share of failing drafts that their model ends itself
};

struct BestLength {
  int length = 1;
  double speed_up = 0;
};

// Costs in one context bucket, in baseline steps of `seconds`; a baseline round takes `plain` of them.
class Prices {
 public:
  Prices(const CostModel* costs, CostTable* table)
      : seconds(*table->step), costs_(costs), table_(table), curve_(table->curve()), plain(1 + host(kNoDrafter)) {}
  int fitted() const { return table_->fits; }
  double host(const std::string& drafter, bool least = false) const;
  double step(const std::string& drafter, bool least = false) const;
  double read(const std::string& drafter, bool least = false) const;
  // One more drafted token: its row in the target's pass.
  double more(int length) const { return (table_->c(length + 2) - curve_[2]) / length; }
  // A draft one token longer, unless the next row is dearer than the ones before it.
  int with_slack(int length) const;
  // A round that drafts `length` tokens, in baseline rounds.
  double round(int length, const Rate& rate) const;
  // alive: for each position, the chance that the draft is accepted up to it.
  BestLength best_length(const std::vector<double>& alive, int longest, const Rate& rate) const;

  const double seconds;

 private:
  double drafting(const std::string& drafter, Recent DraftCost::*part, double assumed, double most) const;

  const CostModel* costs_;
  CostTable* table_;
  CostTable::ByWidth curve_;

 public:
  const double plain;
};

}  // namespace edgedecode
