#include "verify.h"

namespace edgedecode {

int32_t TargetRows::draw(const Ids& path, uint64_t key) const {
  const float* row = logits[static_cast<int>(path.size())];
  return static_cast<int32_t>(sampler->draw(constraint ? constraint->masked(row, path) : row, path, key));
}

Verdict verify(const Draft& draft, const TargetRows& target, const Noise& noise, size_t position,
               const std::set<int32_t>& ends) {
  Verdict verdict{draft, {}, 0, Outcome::kEnded, target};
  for (bool more = true; more;) {
    const int32_t token = target.draw(verdict.tokens, noise.key_at(static_cast<int64_t>(position++)));
    verdict.tokens.push_back(token);
    const bool drafted = verdict.accepted < draft.size();
    more = drafted && draft.tokens[verdict.accepted] == token;
    verdict.accepted += more;
    if (ends.count(token)) return verdict;
    if (!more) verdict.outcome = drafted ? Outcome::kCorrection : Outcome::kBonus;
  }
  return verdict;
}

}  // namespace edgedecode
