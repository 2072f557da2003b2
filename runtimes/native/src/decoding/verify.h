// Verification: which drafted tokens are accepted, and which token the target adds; the match rule of verify.py.
#pragma once

#include <set>
#include <vector>

#include "../sampling/sampler.h"
#include "constraint.h"
#include "drafts.h"

namespace edgedecode {

// How a round ended; the counts of these add up to the rounds.
enum class Outcome { kCorrection, kBonus, kEnded };

// The target's logits for one draft: row 0 follows the context, row i + 1 draft token i. Valid until its next pass.
struct TargetRows {
  Rows logits;
  Sampler* sampler;
  Constraint* constraint;

  int32_t draw(const Ids& path, uint64_t key) const;
  std::vector<int64_t> top(int k, int row) const { return sampler->top(logits[row], k); }
};

struct Verdict {
  Draft draft;
  Ids tokens;             // what the round emits
  int accepted;  // tokens of the draft
  Outcome outcome;
  TargetRows rows;
};

// Samples from the target, and walks down the draft while its tokens are the same. position: of the first token.
Verdict verify(const Draft& draft, const TargetRows& target, const Noise& noise, size_t position,
               const std::set<int32_t>& ends);

}  // namespace edgedecode
