// A draft model's KV cache in one session, as edgedecode/drafters/model_state.py and head_state.py.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "../decoding/drafts.h"
#include "../decoding/model.h"

namespace edgedecode {

// Holds the tokens `read_`, of which the first `agreed_` are known to equal the context's from `start_` on. It catches
// up in chunks when a row is needed. With less capacity than the context it holds a window of its end.
class ModelState {
 public:
  ModelState(LanguageModel* model, int capacity);
  virtual ~ModelState() = default;
  int room() const { return state_->capacity() - read(); }
  void begin(const Ids& context);
  // Reads the next context with this adapter; drops positions that were read with another one.
  void read_with(const AdapterSpan& span);
  virtual void agree(const Ids& context);
  // How many tokens must still be prefilled.
  virtual int unread(const Ids& context) const;
  // How many tokens may be drafted, at most `limit`; starts a new window if needed.
  virtual int reach(const Ids& context, int limit, const Plan& plan);
  // Prefills the rest of a context; the logits after its last token, a view.
  virtual const float* catch_up(const Ids& context);
  // Reads these tokens, which stay pending until the context is known to have them.
  virtual const float* follow(const Ids& tokens);

 protected:
  int read() const { return static_cast<int>(read_.size()); }
  int matching(const Ids& context) const;
  bool is_full(int length) const;
  virtual void restart(int start);
  void crop(int length);
  void settle(const Ids& tokens);
  Rows forward(const Ids& tokens, int rows);

  LanguageModel* model_;
  std::unique_ptr<State> state_;
  AdapterSpan span_;
  int window_ = 0;  // its capacity if the context may outgrow it
  Ids read_;
  int start_ = 0, agreed_ = 0;
};

// A head's. Its row for a position reads the target's features there and the next token, so the token of row i is that
// of position start_ + i. Rows of a draft read the head's own output: they are dropped at the next draft.
class HeadState : public ModelState {
 public:
  HeadState(LanguageModel* head, const State* target, FeatureState* features, int capacity);
  void agree(const Ids& context) override { crop(valid(context)); }
  int unread(const Ids& context) const override;
  int reach(const Ids& context, int limit, const Plan& plan) override;
  const float* catch_up(const Ids& context) override;
  const float* follow(const Ids& tokens) override;

 private:
  static constexpr int kChunk = 64;  // positions that are read at once, as their features are copied
  int valid(const Ids& context) const { return std::min(matching(context), settled_); }
  void restart(int start) override;

  const State* target_;
  FeatureState* features_;
  int settled_ = 0;  // rows that read features
  std::vector<float> hidden_, copied_;
};

}  // namespace edgedecode
