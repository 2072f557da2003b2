#include "model_state.h"

#include "../decoding/loop.h"
#include "../errors.h"

namespace edgedecode {
namespace {

constexpr int kLeastWindow = 512;  // with fewer positions, guesses do not justify the memory

// A draft model that sees less of a long context guesses nearly as well.
std::unique_ptr<State> new_state(LanguageModel* model, int capacity) {
  std::vector<int> windows;
  for (int window = kLeastWindow; window < capacity; window *= 2) windows.push_back(window);
  for (int positions = capacity;; positions = windows.back(), windows.pop_back()) {
    try {
      return model->new_state(positions, 1);
    } catch (const Error& error) {
      if (error.code != EDGEDECODE_OVER_BUDGET || windows.empty()) throw;
    }
  }
}

}  // namespace

ModelState::ModelState(LanguageModel* model, int capacity)
    : model_(model), state_(new_state(model, std::min(capacity, model->card().context))) {
  if (state_->capacity() < capacity) window_ = state_->capacity();
}

void ModelState::begin(const Ids& context) {
  agreed_ = 0;
  agree(context);
}

void ModelState::read_with(const AdapterSpan& span) {
  const int alike = span_.shared_with(span);
  if (alike < INT_MAX) crop(std::min(read(), std::max(0, alike - start_)));
  span_ = span;
  try {
    state_->read_with(span);
  } catch (const Error& error) {
    if (error.code != EDGEDECODE_OVER_BUDGET) throw;
    read_with({});  // drafts are optional
  }
}

Rows ModelState::forward(const Ids& tokens, int rows) {
  state_->read_with({span_.adapter, span_.start - start_});
  return model_->forward(tokens, *state_, rows);
}

void ModelState::agree(const Ids& context) {
  const int agreed = matching(context);
  if (start_ && agreed == 0) start_ = 0;  // the window does not match at all
  crop(agreed);
}

int ModelState::unread(const Ids& context) const {
  const int agreed = matching(context);
  const int length = static_cast<int>(context.size()) - (agreed ? start_ : 0);
  return is_full(length) ? window_ / 2 : length - agreed;
}

int ModelState::reach(const Ids& context, int limit, const Plan& plan) {
  agree(context);
  const int size = static_cast<int>(context.size());
  if (0 < plan.read_max && plan.read_max < size - start_ - read()) restart(size - plan.read_max);
  if (is_full(size - start_)) restart(size - window_ / 2);
  return std::min(limit, state_->capacity() - (size - start_));
}

const float* ModelState::catch_up(const Ids& context) {
  const int size = static_cast<int>(context.size());
  if (start_ + read() == size) crop(read() - 1);
  for (;;) {
    const int known = start_ + read(), count = std::min(size - known, kPrefillChunk);
    const Ids chunk(context.begin() + known, context.begin() + known + count);
    if (count == size - known) {
      const float* row = follow(chunk);
      state_->keep(count);
      return row;
    }
    forward(chunk, 0);
    settle(chunk);
  }
}

const float* ModelState::follow(const Ids& tokens) {
  const float* row = forward(tokens, 1)[0];
  read_.insert(read_.end(), tokens.begin(), tokens.end());
  return row;
}

int ModelState::matching(const Ids& context) const {
  int agreed = agreed_;
  const int end = std::min(read(), static_cast<int>(context.size()) - start_);
  while (agreed < end && read_[agreed] == context[start_ + agreed]) ++agreed;
  return agreed;
}

// Whether a window with so many positions has no room for the longest draft.
bool ModelState::is_full(int length) const {
  return window_ > 0 && length + std::min(kMaxDraft, window_ / 4) > window_;
}

void ModelState::restart(int start) {
  start_ = start;
  crop(0);
}

void ModelState::crop(int length) {
  if (length >= state_->length() && state_->pending()) {
    state_->keep(length - state_->length());
  } else {
    state_->crop(length);
  }
  agreed_ = state_->length();
  read_.resize(std::min(read(), agreed_));
}

void ModelState::settle(const Ids& tokens) {
  state_->keep(static_cast<int>(tokens.size()));
  read_.insert(read_.end(), tokens.begin(), tokens.end());
}

HeadState::HeadState(LanguageModel* head, const State* target, FeatureState* features, int capacity)
    : ModelState(head, capacity), target_(target), features_(features), hidden_(head->card().hidden) {
  start_ = 1;
}

int HeadState::unread(const Ids& context) const {
  const int agreed = valid(context), known = agreed ? start_ - 1 + agreed : 0;
  return std::max(0, static_cast<int>(context.size()) - 1 - std::max(known, features_->oldest()));
}

int HeadState::reach(const Ids& context, int limit, const Plan& plan) {
  agree(context);
  const int last = static_cast<int>(context.size()) - 1, oldest = features_->oldest();
  if (target_->length() < last || oldest >= last) return 0;  // the target has not processed all but the last token
  const int begin = std::max(oldest, plan.read_max > 0 ? last - plan.read_max : 0);
  if (start_ - 1 + read() < begin || read_.empty() || is_full(last - start_ + 1))
    restart(std::max(begin, window_ ? last - std::max(1, window_ / 2) : 0) + 1);
  return std::min(limit, state_->capacity() - (last - start_ + 1));
}

const float* HeadState::catch_up(const Ids& context) {
  const int last = static_cast<int>(context.size()) - 1;
  if (start_ - 1 + read() == last) crop(read() - 1);  // its last row's output is gone
  for (int begin = start_ - 1 + read();;) {
    const int stop = std::min(begin + kChunk, last);
    const Ids tokens(context.begin() + begin + 1, context.begin() + stop + 1);
    copied_.resize(static_cast<size_t>(stop - begin) * features_->width());
    features_->rows(begin, stop, copied_.data());
    const Rows rows = model_->draft(tokens, *state_, copied_.data(), nullptr, hidden_.data());
    settle(tokens);
    settled_ = read();
    begin = stop;
    if (stop == last) return rows[0];
  }
}

// Reads a drafted token with the output of the row before.
const float* HeadState::follow(const Ids& tokens) {
  const std::vector<float> before = hidden_;
  const Rows rows = model_->draft(tokens, *state_, nullptr, before.data(), hidden_.data());
  settle(tokens);
  return rows[0];
}

void HeadState::restart(int start) {
  ModelState::restart(start);
  settled_ = 0;
}

}  // namespace edgedecode
