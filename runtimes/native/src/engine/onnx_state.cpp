#include "onnx_state.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "../errors.h"
#include "onnx_model.h"
#include "recurrence.h"

namespace edgedecode {
namespace {

// Copies slots of one head's keys, in tiles, or of its values, in ascending order, to those from `start`.
template <class T>
void move_slots(T* head, const CacheShape& shape, const std::vector<int>& sources, int start) {
  const size_t size = static_cast<size_t>(shape.size);
  for (size_t i = 0; i < sources.size(); i++) {
    const size_t from = static_cast<size_t>(sources[i]), to = static_cast<size_t>(start) + i;
    if (!shape.keys) {
      memcpy(head + to * size, head + from * size, size * sizeof(T));
      continue;
    }
    const T* source = head + from / kKeyTile * size * kKeyTile + from % kKeyTile;
    T* place = head + to / kKeyTile * size * kKeyTile + to % kKeyTile;
    for (size_t j = 0; j < size; j++) place[j * kKeyTile] = source[j * kKeyTile];
  }
}

template <class T>
void move_all(void* cache, const PackedModel& model, int64_t slots, const std::vector<int>& sources, int start) {
  T* next = static_cast<T*>(cache);
  for (const CacheShape& shape : model.caches)
    for (int64_t head = 0; head < shape.heads; head++, next += slots * shape.size)
      move_slots(next, shape, sources, start);
}

}  // namespace

Zeros zeros(int64_t nbytes) {
  Zeros found(calloc(static_cast<size_t>(std::max<int64_t>(nbytes, 1)), 1));
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

Tree::Tree(int chain) {
  for (int row = 0; row < chain; row++) {
    parents_.push_back(row - 1);
    depths_.push_back(row);
  }
}

void Tree::grow(const std::vector<int>& parents, int after) {
  parents_.resize(static_cast<size_t>(after));
  depths_.resize(static_cast<size_t>(after));
  for (const int parent : parents) {
    parents_.push_back(parent);
    depths_.push_back(parent < 0 ? 0 : depth(parent) + 1);
  }
}

int Tree::trunk() const {
  int chain = 0;
  while (chain < count() && parents_[static_cast<size_t>(chain)] == chain - 1) chain++;
  int least = chain;
  for (int row = chain; row < count(); row++) least = std::min(least, 1 + parents_[static_cast<size_t>(row)]);
  return least;
}

void Tree::check_path(const std::vector<int>& path, int pending) const {
  int above = -1;
  for (const int node : path) {
    if (node < 0 || node >= pending || parents_[static_cast<size_t>(node)] != above)
      throw input_error("pending row " + std::to_string(node) + " does not continue row " + std::to_string(above) +
                        ": keep one path, root first");
    above = node;
  }
}

OnnxState::OnnxState(OnnxModel& model, int capacity, int rows, Lease lease)
    : model_(model), capacity_(capacity), rows_(rows), lease_(std::move(lease)) {}

OnnxState::~OnnxState() { model_.drop(*this); }

void OnnxState::keep(const std::vector<int>& path) {
  const int count = static_cast<int>(path.size());
  if (count > pending_)
    throw input_error("cannot keep " + std::to_string(count) + " pending rows: only " + std::to_string(pending_) +
                      " are pending");
  if (recurrence_ != nullptr) recurrence_->check_kept(count);
  if (tree_ == nullptr) {
    for (int i = 0; i < count; i++)
      if (path[static_cast<size_t>(i)] != i)
        throw input_error("cannot keep pending row " + std::to_string(path[static_cast<size_t>(i)]) + " as row " +
                          std::to_string(i) + " of the chain: keep the chain's first rows");
  } else if (count > 0) {
    tree_->check_path(path, pending_);
    if (path.back() >= count) gather(path);  // else its rows are there already
  }
  const bool any = pending_ > 0;
  settle(length_ + count);
  if (recurrence_ != nullptr && any) recurrence_->keep(path);
}

void OnnxState::crop(int length) {
  if (length < 0 || length > length_)
    throw capability_error("cannot go back to length " + std::to_string(length) + ": " + std::to_string(length_) +
                           " positions are settled");
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

void OnnxState::grow(int count, const std::vector<int>* parents) {
  const int used = length_ + pending_;
  if (count > capacity_ - used)
    throw capability_error(std::to_string(count) + " more rows do not fit the state: " + std::to_string(used) + " of " +
                           std::to_string(capacity_) + " are used (shorten the prompt, or raise \"context\")");
  std::vector<int> next;
  for (int row = pending_; row < pending_ + count; row++) next.push_back(row - 1);
  if (parents != nullptr && parents->size() != next.size())
    throw input_error(std::to_string(parents->size()) + " parents for " + std::to_string(count) + " tokens");
  for (int i = 0; parents != nullptr && i < count; i++) {
    const int parent = (*parents)[static_cast<size_t>(i)];
    if (parent < -1 || parent >= pending_ + i)
      throw input_error("row " + std::to_string(pending_ + i) + " has parent " + std::to_string(parent) +
                        ": parents come before their children, -1 is the root");
  }
  const bool branches = parents != nullptr && *parents != next;
  if (branches && tree_ == nullptr) tree_ = std::make_unique<Tree>(pending_);
  if (tree_ != nullptr) tree_->grow(branches ? *parents : next, pending_);
}

void OnnxState::settle(int length) {
  length_ = length;
  pending_ = 0;
  tree_ = nullptr;
  if (features_ != nullptr) features_->settle(length);
}

void OnnxState::gather(const std::vector<int>& path) {
  std::vector<int> sources;
  for (const int row : path) sources.push_back(length_ + row);
  const PackedModel& facts = model_.facts();
  if (facts.int8)
    move_all<int8_t>(cache_.get(), facts, slot_count(capacity_), sources, length_);
  else
    move_all<float>(cache_.get(), facts, slot_count(capacity_), sources, length_);
  if (features_ != nullptr) features_->gather(path, length_);
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

void FeatureRows::gather(const std::vector<int>& path, int length) {
  const int start = length - oldest_;
  for (size_t i = 0; i < names_.size(); i++)
    for (size_t j = 0; j < path.size(); j++)
      memmove(at(i, start + static_cast<int>(j)), at(i, start + path[j]), hidden_ * sizeof(float));
}

void FeatureRows::settle(int length) {
  end_ = std::min(end_, length);
  oldest_ = std::min(oldest_, length);
}

}  // namespace edgedecode
