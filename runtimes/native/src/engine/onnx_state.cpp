#include "onnx_state.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "../errors.h"
#include "onnx_model.h"
#include "recurrence.h"

namespace edgedecode {

Zeros zeros(int64_t nbytes) {
  Zeros found(calloc(static_cast<size_t>(std::max<int64_t>(nbytes, 1)), 1));
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

OnnxState::OnnxState(OnnxModel& model, int capacity, int rows, Lease lease)
    : model_(model), capacity_(capacity), rows_(rows), lease_(std::move(lease)) {}

OnnxState::~OnnxState() { model_.drop(*this); }

void OnnxState::keep(int count) {
  if (count < 0 || count > pending_)
    throw input_error("cannot keep ", count, " pending rows: only ", pending_, " are pending");
  if (recurrence_ != nullptr) recurrence_->check_kept(count);
  const bool any = pending_ > 0;
  settle(length_ + count);
  if (recurrence_ != nullptr && any) recurrence_->keep(count);
}

void OnnxState::crop(int length) {
  if (length < 0 || length > length_)
    throw capability_error("cannot go back to length ", length, ": ", length_, " positions are settled");
  if (recurrence_ != nullptr) length = recurrence_->crop(length, length_, pending_);
  settle(length);
}

FeatureState* OnnxState::keep_features() {
  if (features_ == nullptr) features_ = model_.new_features(length_);
  return features_.get();
}

void OnnxState::read_with(const AdapterSpan& span) {
  if (adapter_ && &adapter_->facts != span.adapter) {  // its memory first
    model_.bind_adapter(*this, false);
    adapter_ = nullptr;
  }
  if (span.adapter && !adapter_) adapter_ = model_.adapter(*span.adapter);
  adapter_from_ = span.start;
}

void OnnxState::settle(int length) {
  length_ = length;
  pending_ = 0;
  if (features_ != nullptr) features_->settle(length);
}

FeatureRows::FeatureRows(const PackedModel& model, int start, Lease lease)
    : names_(model.features),
      hidden_(static_cast<size_t>(model.hidden)),
      values_(new float[names_.size() * kSlots * hidden_]),
      oldest_(start),
      end_(start),
      lease_(std::move(lease)) {}

void FeatureRows::rows(int start, int stop, float* out) const {
  for (int position = start; position < stop; position++)
    for (size_t i = 0; i < names_.size(); i++, out += hidden_)
      memcpy(out, values_.get() + (i * kSlots + static_cast<size_t>(position - oldest_)) * hidden_,
             hidden_ * sizeof(float));
}

void FeatureRows::bind(Binding& binding, int first, int width) {
  if (first < oldest_ || first > end_) oldest_ = first;  // the rows between have no features
  if (first + width - oldest_ > kSlots) {
    const int kept = std::min({first - oldest_, kSlots / 2, kSlots - width});
    for (size_t i = 0; i < names_.size(); i++)
      memmove(at(i, 0), at(i, first - kept - oldest_), static_cast<size_t>(kept) * hidden_ * sizeof(float));
    oldest_ = first - kept;
  }
  for (size_t i = 0; i < names_.size(); i++)
    binding.output(names_[i].c_str(), Value(at(i, first - oldest_), {1, width, static_cast<int64_t>(hidden_)}));
  end_ = first + width;
}

void FeatureRows::settle(int length) {
  end_ = std::min(end_, length);
  oldest_ = std::min(oldest_, length);
}

}  // namespace edgedecode
