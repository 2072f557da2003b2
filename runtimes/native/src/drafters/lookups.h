// Drafters without a model: what followed the same words before, and what the target found likeliest before.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "../decoding/drafts.h"
#include "../decoding/verify.h"

namespace edgedecode {

// Continues from the most recent place of the longest suffix of the conversation (SAM-Decoding, 2411.10666).
class SuffixDrafter : public Drafter {
 public:
  explicit SuffixDrafter(const std::set<int32_t>& ends) : ends_(ends) {}
  const std::string& name() const override { return name_; }
  Draft propose(const Ids& context, int limit, const Plan& plan) override;
  bool watches() const override { return true; }
  bool repeats(const Ids& context, int length) override;

 private:
  const std::string name_ = "suffix";
  const std::set<int32_t>& ends_;
};

// Chains ids that the target earlier found likeliest after each id (2408.08696). A row per id learns from rows that the
// target computes anyway; the best rank at each depth is learnt from the emitted tokens.
class RecycleDrafter : public Drafter {
 public:
  static constexpr int kBreadth = 8;  // followers kept per id

  RecycleDrafter(int vocabulary_size, const std::set<int32_t>& ends);
  static int64_t nbytes(int vocabulary_size) { return int64_t{vocabulary_size} * kBreadth * 4; }
  const std::string& name() const override { return name_; }
  void begin(const Text& context) override;
  Draft propose(const Ids& context, int limit, const Plan& plan) override;
  void observe(const Ids& context, const Verdict& verdict) override;

 private:
  static constexpr int kDeepest = 3;  // depths with separate hit rates
  double rate(int depth, int rank) const;
  int best_rank(int depth) const;
  void score(int depth, int32_t token, int32_t follower);
  void learn(const Verdict& verdict, int32_t before);
  int32_t* followers(int32_t token) { return followers_.data() + int64_t{token} * kBreadth; }

  const std::string name_ = "recycle";
  const std::set<int32_t>& ends_;
  std::vector<int32_t> followers_;  // [id, rank], likeliest first; -1: unknown
  double hits_[kDeepest][kBreadth] = {}, tried_[kDeepest] = {};
  const int rows_;  // that are learnt from in a round
  int64_t rounds_ = 0;
  Text context_;
};

}  // namespace edgedecode
