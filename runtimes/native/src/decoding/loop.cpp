// Read export/bundles/device/decode.py first: the same algorithm for greedy chains, and nothing else.
#include "loop.h"

#include <algorithm>

namespace edgedecode {
namespace {

Ids unread_of(const Ids& tokens, const State& state, int count) {
  const auto start = tokens.begin() + state.length();
  return {start, start + count};
}

// Rolls the state back to a prefix of the tokens, and tells everyone who takes part that an answer starts.
void begin(State& state, const Text& tokens, const DecodeSetting& setting, Stats* stats) {
  if (tokens->empty()) throw input_error("there are no tokens to continue: a prompt has at least one");
  if (static_cast<int>(tokens->size()) >= state.capacity())
    throw context_exceeded(tokens->size(), state.capacity(), "an answer needs room too");
  setting.sampler->begin(*tokens, stats->tokens);
  state.crop(std::min(state.length(), static_cast<int>(tokens->size()) - 1));
  if (stats->rounds == 0)
    stats->prompt_tokens = static_cast<int64_t>(tokens->size()), stats->cached_tokens = state.length();
  if (setting.drafting) setting.drafting->begin(tokens, setting.kind);
}

// Prefills the next piece of the tokens that the state lacks, except for those of the next pass; false: none is left.
bool prefill_piece(LanguageModel& target, State& state, const Ids& tokens) {
  const int unread = static_cast<int>(tokens.size()) - state.length();
  if (unread <= kPrefillChunk) return false;
  target.forward(unread_of(tokens, state, kPrefillChunk), state, 0);
  state.keep(kPrefillChunk);
  return true;
}

// A draft for the target, whose own token after it must fit the room too. Nothing is forced or drafted in the first
// round, so that nothing delays the first token.
Draft propose(const DecodeSetting& setting, const Ids& tokens, int room, bool first) {
  if (first) return Draft();
  if (setting.constraint) {
    Draft forced = setting.constraint->forced(room - 1);
    if (!forced.empty()) return forced;
  }
  return setting.drafting ? setting.drafting->propose(tokens, room - 1, setting.constraint) : Draft();
}

}  // namespace

void decode(LanguageModel& target, State& state, const std::shared_ptr<Ids>& text, int max_tokens,
            const DecodeSetting& setting, Stats* stats, const OnRound& on_round) {
  Ids& tokens = *text;
  Stopwatch watch(setting.clock);
  const int limit = std::min(static_cast<int>(tokens.size()) + max_tokens, state.capacity());
  begin(state, text, setting, stats);
  bool first = true;
  for (int room; (room = limit - static_cast<int>(tokens.size())) > 0; first = false) {
    // Propose.
    const Draft draft = propose(setting, tokens, room, first);
    watch.lap(&TimeSplit::draft);

    // Prefill what the target has not processed, except for its next pass.
    while (prefill_piece(target, state, tokens)) {
      if (!on_round(nullptr)) return;
      watch.lap(&TimeSplit::verify);
    }

    // Score: one pass over the unread tokens and the draft after them.
    const int unread = static_cast<int>(tokens.size()) - state.length();
    Ids row_tokens = unread_of(tokens, state, unread);
    row_tokens.insert(row_tokens.end(), draft.tokens.begin(), draft.tokens.end());
    const Rows logits = target.forward(row_tokens, state, 1 + draft.size());
    watch.lap(&TimeSplit::verify);

    // Verify, and keep what is accepted.
    const TargetRows scored{logits, setting.sampler, setting.constraint};
    const Verdict verdict = verify(draft, scored, *setting.noise, tokens.size(), *setting.ends);
    watch.lap(&TimeSplit::sample);
    state.keep(unread + verdict.accepted);

    // Settle.
    tokens.insert(tokens.end(), verdict.tokens.begin(), verdict.tokens.end());
    setting.sampler->extend(verdict.tokens);
    stats->count(verdict, setting.drafting && !first ? setting.drafting->plan().reason : "");
    if (setting.constraint) setting.constraint->extend(verdict.tokens);
    watch.lap(&TimeSplit::host);
    if (setting.drafting) setting.drafting->observe(tokens, verdict);
    watch.lap(&TimeSplit::draft);
    const TimeSplit& time = watch.round;
    if (setting.drafting && !first && verdict.draft.source != kForced)
      setting.drafting->spent(verdict, time.verify, time.draft + time.sample + time.host);
    if (first) {
      stats->prefilled(time.total());
    } else {
      stats->spend(time, row_tokens.size() == 1);
    }
    if (!on_round(&verdict) || verdict.outcome == Outcome::kEnded) return;
    watch.start();
  }
}

Error context_exceeded(size_t tokens, int context, const std::string& remedy) {
  return input_error("prompt is too long: ", tokens, " tokens > ", context - 1,
                     " maximum (this model's maximum context length is ", context, " tokens): ", remedy);
}

}  // namespace edgedecode
