#include "model_drafters.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace edgedecode {
namespace {

constexpr double kRate = 0.2, kLeastRate = 0.02;  // learning rate, the first and the lowest
constexpr double kLargest = 6.0;                  // features are clipped here

Ids since(const Ids& context, size_t start) {
  return {context.begin() + std::min(start, context.size()), context.end()};
}

}  // namespace

Confidence::Features Confidence::features(const Leading& leading, int position) {
  const double others = leading.others;
  const double logit = others <= 0 ? kLargest : std::min(std::max(-std::log(others), -kLargest), kLargest);
  return {logit, std::min(leading.margin, kLargest), std::min<double>(position, kLargest)};
}

double Confidence::chance(const Features& seen) const {
  const double sum = weights_[0] * seen[0] + weights_[1] * seen[1] + weights_[2] * seen[2];
  return 1.0 / (1.0 + std::exp(-sum));
}

void Confidence::learn(const std::vector<Features>& seen, size_t accepted) {
  for (size_t index = 0; index < std::min(seen.size(), accepted + 1); ++index) {
    const double error = (index < accepted ? 1.0 : 0.0) - chance(seen[index]);
    const double rate = std::max(kLeastRate, kRate / std::sqrt(1 + static_cast<double>(judged_) / 16));
    ++judged_;
    for (int place = 0; place < 3; ++place) weights_[place] += rate * error * seen[index][place] / kLargest;
  }
}

ModelDrafter::ModelDrafter(std::string name, LanguageModel* model, std::unique_ptr<ModelState> state,
                           const DraftSetting& setting)
    : name_(std::move(name)), setting_(setting), state_(std::move(state)),
      sampler_(*setting.sampling, setting.vocabulary_size) {
  if (!model->card().token_ids.empty()) vocabulary_ = std::make_unique<TrimmedVocabulary>(model->card().token_ids);
}

void ModelDrafter::begin(const Text& context) {
  state_->begin(*context);
  guess_ = Guess();
  sampler_.begin(*context);
  sampler_length_ = context->size();
}

Draft ModelDrafter::propose(const Ids& context, int limit, const Plan& plan) {
  Draft draft;
  limit = state_->reach(context, limit, plan);
  if (limit <= 0) return draft;
  sampler_.extend(since(context, sampler_length_));
  sampler_length_ = context.size();
  const float* row = state_->catch_up(context);
  guess_ = Guess{context.size(), plan.floor > 0, {}, {}};
  double alive = 1;
  // Up to `limit` tokens, an end token, or until the chance that all are accepted falls below the floor.
  while (draft.size() < limit && (draft.empty() || !setting_.ends->count(draft.tokens.back()))) {
    if (!row) {
      if (state_->room() < 2) break;  // as in `reach`, the next token has a position too
      row = state_->follow({draft.tokens.back()});
    }
    if (!add(&draft, row, plan.floor, &alive)) break;
    row = nullptr;
  }
  if (draft.empty()) return draft;
  draft.source = name_;
  draft.vocabulary = vocabulary_.get();
  return draft;
}

// Appends the token drawn from the row after the draft, unless that lowers its chance below the floor.
bool ModelDrafter::add(Draft* draft, const float* row, double floor, double* alive) {
  const std::vector<int64_t>* ids = vocabulary_ ? &vocabulary_->ids : nullptr;
  std::optional<Leading> leading;
  if (floor > 0) leading = Sampler::leading(row, ids ? static_cast<int64_t>(ids->size()) : setting_.vocabulary_size);
  int64_t token = 0;
  if (leading && sampler_.takes_largest()) {
    token = ids ? (*ids)[leading->index] : leading->index;
  } else {
    const auto position = static_cast<int64_t>(guess_.at) + draft->size();
    token = sampler_.draw(row, draft->tokens, setting_.noise->key_at(position), ids);
  }
  if (leading) {
    guess_.tokens.push_back(static_cast<int32_t>(token));
    guess_.seen.push_back(Confidence::features(*leading, draft->size() + 1));
    *alive *= confidence_.chance(guess_.seen.back());
  }
  if (*alive < floor) return false;
  draft->tokens.push_back(static_cast<int32_t>(token));
  return true;
}

void ModelDrafter::observe(const Ids& context, const Verdict& verdict) {
  const Ids& emitted = verdict.tokens;
  if (!guess_.counts || guess_.at != context.size() - emitted.size()) return;
  std::vector<Confidence::Features> judged = guess_.seen;
  judged.resize(std::min(judged.size(), emitted.size()));
  size_t accepted = 0;
  const size_t compared = std::min(guess_.tokens.size(), emitted.size());
  while (accepted < compared && guess_.tokens[accepted] == emitted[accepted]) ++accepted;
  confidence_.learn(judged, accepted == compared ? judged.size() : accepted);
}

}  // namespace edgedecode
