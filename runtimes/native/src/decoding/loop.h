// The decode loop: prefill, then propose, score, verify and settle, round by round, as edgedecode/decoding/loop.py.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "../errors.h"
#include "constraint.h"
#include "drafting.h"
#include "model.h"
#include "stats.h"
#include "verify.h"

namespace edgedecode {

constexpr int kPrefillChunk = 512;  // prompt tokens per prefill pass

// The parts of one answer. Without drafting it is plain decoding.
struct DecodeSetting {
  Sampler* sampler = nullptr;
  const Noise* noise = nullptr;
  Drafting* drafting = nullptr;
  Constraint* constraint = nullptr;
  const std::set<int32_t>* ends = nullptr;
  std::string kind;  // what acceptance rates depend on: the adapter's name, and "{}" with a grammar
  Clock clock;
};

// Takes each round's verdict once its tokens are appended, and null after each piece of a long prompt, when another
// thread may use the models. Returns whether to go on.
using OnRound = std::function<bool(const Verdict*)>;

// Generates after `tokens`, appending to them, until a token of `ends`, `max_tokens`, or a full context. `state`
// holds a prefix of the tokens, of any length. Throws input_error for a prompt that is empty or leaves no room.
// Stopping at any point leaves tokens and state usable. Speculative decoding (2211.17192) with any drafter.
void decode(LanguageModel& target, State& state, const std::shared_ptr<Ids>& tokens, int max_tokens,
            const DecodeSetting& setting, Stats* stats, const OnRound& on_round);

Error context_exceeded(size_t tokens, int context, const std::string& remedy);

}  // namespace edgedecode
