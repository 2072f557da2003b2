// Drafts: chains of proposed tokens, and the ids that a trimmed draft can propose.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "model.h"
#include "policy.h"

namespace edgedecode {

constexpr const char* kForced = "forced";  // the source of tokens that a constraint leaves no choice for

// Row i of a trimmed draft is the id `ids[i]`; ascending.
struct TrimmedVocabulary {
  explicit TrimmedVocabulary(std::vector<int64_t> ids) : ids(std::move(ids)) {}
  bool has(int64_t token) const { return std::binary_search(ids.begin(), ids.end(), token); }
  const std::vector<int64_t> ids;
};

struct Draft {
  Ids tokens;
  std::string source = "none";  // the drafter's name
  int match = 0;                // length of the text that a lookup found again
  const TrimmedVocabulary* vocabulary = nullptr;  // what its drafter could propose; null: any id

  int size() const { return static_cast<int>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
  Draft cut(int length) const {
    Draft found = *this;
    if (length < size()) found.tokens.resize(length);
    return found;
  }
};

struct Verdict;
using Text = std::shared_ptr<const Ids>;  // a conversation's tokens, which grow in place

// Proposes continuations for one session; its indexes and states are caches of the context.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual const std::string& name() const = 0;
  virtual bool free() const { return true; }  // whether it proposes without a forward pass
  // Starts an answer: forgets what contradicts the context.
  virtual void begin(const Text&) {}
  virtual void read_with(const AdapterSpan&) {}  // its model's adapter from the next answer on
  virtual int unread(const Ids&) { return 0; }  // tokens that its model must prefill first
  virtual Draft propose(const Ids& context, int limit, const Plan& plan) = 0;
  // Learns from a round, also of another drafter; `context` ends with the verdict's tokens.
  virtual void observe(const Ids&, const Verdict&) {}
  virtual bool watches() const { return false; }
  // Whether the last `length` tokens occur before, without a proposal.
  virtual bool repeats(const Ids&, int) { return false; }
};

}  // namespace edgedecode
