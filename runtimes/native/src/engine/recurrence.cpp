#include "recurrence.h"

#include <algorithm>
#include <cstring>

#include "../errors.h"

namespace edgedecode {
namespace {

// A snapshot is taken before a pass if the states have moved on by so many rows, or one of a message's length.
constexpr int kEvery = 64, kLarge = 16;
// A short context allows so many bytes of snapshots per position; from 1,024 positions on there are at least two.
constexpr int64_t kPositionNbytes = 1 << 16;
constexpr int kLong = 1024, kFewest = 2, kMost = 8;

}  // namespace

int Recurrence::snapshot_count(int64_t states, int capacity) {
  const int64_t nbytes = kPositionNbytes * std::min(kLong, capacity);
  const int64_t fits = std::min<int64_t>(kMost, nbytes / std::max<int64_t>(1, 4 * states));
  return static_cast<int>(std::max<int64_t>(capacity >= kLong ? kFewest : 0, fits));
}

Recurrence::Recurrence(const std::vector<RecurrentShape>& shapes, int capacity) : shapes_(shapes) {
  for (const RecurrentShape& each : shapes_) {
    values_ += static_cast<size_t>(each.values);
    slots_.push_back(zeros(4 * kSlots * each.width));
  }
  states_ = zeros(static_cast<int64_t>(4 * values_));
  for (int i = snapshot_count(static_cast<int64_t>(values_), capacity); i > 0; i--)
    free_.emplace_back(new float[values_]);
}

void Recurrence::bind_memory(Binding& binding) {
  float* state = static_cast<float*>(states_.get());
  for (size_t i = 0; i < shapes_.size(); i++) {
    const RecurrentShape& each = shapes_[i];
    const Value values(state, {each.values});
    const Value rows(static_cast<float*>(slots_[i].get()), {kSlots, each.width});
    binding.input(("past_state." + each.name).c_str(), values);
    binding.output(("present_state." + each.name).c_str(), values);
    binding.input(("past_rows." + each.name).c_str(), rows);
    binding.output(("present_rows." + each.name).c_str(), rows);
    state += each.values;
  }
}

void Recurrence::begin(Binding& binding, int length, int start, int width) {
  check(length, start);
  if (failed_) throw capability_error("a pass of recurrent layers has failed: roll the state back before the next one");
  const int first = start - before_;
  const bool chained = first > 0 && first + width > kSlots;  // earlier rows make room: states take them now
  const int alone = chained ? 0 : first;
  const int through = std::max(0, alone + width - kSlots);
  std::vector<int32_t> rows = {alone};
  for (int row = 0; row < (chained ? first : accepted_); row++) rows.push_back(row);
  snapshot(width >= kLarge);
  if (rows != bound_) {
    bound_ = std::move(rows);
    binding.input("kept_rows", Value(bound_.data(), {static_cast<int64_t>(bound_.size())}));
  }
  next_ = (chained ? start : before_) + through;
  failed_ = true;  // until `commit`
}

void Recurrence::commit(int length) {
  before_ = next_;
  base_ = length + before_;
  accepted_ = 0;
  failed_ = false;
}

void Recurrence::check_kept(int count) const {
  if (count < before_)
    throw capability_error(before_, " of the pending rows must be kept, and ", count, " are: roll back instead");
}

void Recurrence::keep(int count) {
  accepted_ = count - before_;
  before_ = 0;
}

int Recurrence::crop(int length, int settled, int pending) {
  check(settled, pending);
  if (failed_ || length < base_) return restore(length);
  accepted_ = std::min(accepted_, length - base_);
  return length;
}

// Notes whether an error came behind a pass, or between settling rows and noting them here.
void Recurrence::check(int length, int pending) {
  failed_ = failed_ || before_ > pending || base_ + accepted_ != length + before_;
}

void Recurrence::snapshot(bool large) {
  if (base_ - newest() < (large ? 1 : kEvery) || (free_.empty() && snapshots_.empty())) return;
  if (free_.empty()) {  // the gap that it leaves is the smallest beside the way back to it
    double least = 2;
    auto chosen = snapshots_.begin();
    int before = 0;
    for (auto each = snapshots_.begin(); each != snapshots_.end(); ++each) {
      const auto next = std::next(each);
      const int after = next == snapshots_.end() ? base_ : next->first;
      const double gap = static_cast<double>(after - before) / (base_ - before);
      if (gap < least) least = gap, chosen = each;
      before = each->first;
    }
    free_.push_back(std::move(chosen->second));
    snapshots_.erase(chosen);
  }
  Floats memory = std::move(free_.back());
  free_.pop_back();
  memcpy(memory.get(), states_.get(), 4 * values_);
  snapshots_[base_] = std::move(memory);
}

int Recurrence::restore(int length) {
  while (!snapshots_.empty() && newest() > length) {
    free_.push_back(std::move(snapshots_.rbegin()->second));
    snapshots_.erase(std::prev(snapshots_.end()));
  }
  const int position = newest();
  if (position > 0)
    memcpy(states_.get(), snapshots_.rbegin()->second.get(), 4 * values_);
  else
    memset(states_.get(), 0, 4 * values_);
  base_ = position;
  accepted_ = 0;
  before_ = 0;
  failed_ = false;
  return position;
}

}  // namespace edgedecode
