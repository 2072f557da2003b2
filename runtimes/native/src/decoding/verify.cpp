#include "verify.h"

namespace edgedecode {
namespace {

// The child of a node with this token, -1: none. has: whether the node has any child.
int child_of(const Draft& draft, int node, int32_t token, bool* has) {
  *has = false;
  for (int child = node + 1; child < draft.size(); ++child) {
    if (draft.parent(child) != node) continue;
    *has = true;
    if (draft.tokens[child] == token) return child;
  }
  return -1;
}

}  // namespace

int32_t TargetRows::draw(int node, const Ids& path, uint64_t key) const {
  const float* row = logits[node + 1];
  return static_cast<int32_t>(sampler->draw(constraint ? constraint->masked(row, path) : row, path, key));
}

Verdict verify(const Draft& draft, const TargetRows& target, const Noise& noise, size_t position,
               const std::set<int32_t>& ends) {
  Verdict verdict{draft, {}, {}, Outcome::kEnded, target};
  int node = -1;
  for (;;) {
    const int32_t token = target.draw(node, verdict.tokens, noise.key_at(static_cast<int64_t>(position++)));
    verdict.tokens.push_back(token);
    bool branches = false;
    const int child = child_of(draft, node, token, &branches);
    if (child >= 0) verdict.path.push_back(child);
    if (ends.count(token)) return verdict;
    if (child < 0) {
      verdict.outcome = branches ? Outcome::kCorrection : Outcome::kBonus;
      return verdict;
    }
    node = child;
  }
}

}  // namespace edgedecode
