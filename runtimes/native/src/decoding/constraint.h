// What restricts an answer's tokens, such as a grammar: the loop drafts what it forces and masks what it refuses.
#pragma once

#include <set>
#include <vector>

#include "../../include/edgedecode.h"
#include "drafts.h"

namespace edgedecode {

constexpr int kMostForced = 16;  // tokens of a round, whatever drafts have

// The caller's constraint, as in edgedecode/decoding/constraint.py. Tokens are committed as they are drawn.
class Constraint {
 public:
  // rows: of a row of logits.
  Constraint(const edgedecode_constraint& given, int rows, const std::set<int32_t>& ends)
      : given_(given), rows_(rows), ends_(ends) {}
  Draft forced(int room);
  // The part of a draft that is allowed.
  Draft allowed(const Draft& draft);
  // The row with -inf for each token that may not come after `path`, which continues the round's earlier paths.
  const float* masked(const float* row, const Ids& path);
  void extend(const Ids& tokens);

 private:
  void commit(const Ids& tokens);

  const edgedecode_constraint given_;
  const int rows_;
  const std::set<int32_t>& ends_;
  size_t path_ = 0;  // tokens of the running round that are committed
  std::vector<float> row_;
};

}  // namespace edgedecode
