// One sequence's keys and values, and the engine's binding over them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../decoding/model.h"
#include "../pack/budget.h"
#include "../pack/manifest.h"
#include "../pack/files.h"
#include "engine.h"

namespace edgedecode {

constexpr int kKeyTile = 16;  // slots that our attention stores together, transposed
inline int64_t slot_count(int capacity) { return (int64_t{capacity} + kKeyTile - 1) / kKeyTile * kKeyTile; }

// Zeros that take memory only where they are written.
struct Freed {
  void operator()(void* memory) const { free(memory); }
};
using Zeros = std::unique_ptr<void, Freed>;
Zeros zeros(int64_t nbytes);  // throws std::bad_alloc

class OnnxModel;
class Recurrence;

// An adapter whose matrices are mapped.
struct Adapter {
  const PackedAdapter& facts;
  Lease lease;
  Mapped file;
};

// What some layers of a target read at the last positions of a state, where passes write it.
class FeatureRows : public FeatureState {
 public:
  static constexpr int kSlots = 288;  // those of a long prompt's last pass, and 32 before
  FeatureRows(const PackedModel& model, int start, Lease lease);
  int oldest() const override { return oldest_; }
  int width() const override { return static_cast<int>(names_.size() * hidden_); }
  void rows(int start, int stop, float* out) const override;
  void bind(Binding& binding, int first, int width);
  void settle(int length);

 private:
  float* at(size_t output, int slot) { return values_.get() + (output * kSlots + static_cast<size_t>(slot)) * hidden_; }
  const std::vector<std::string>& names_;
  const size_t hidden_;
  std::unique_ptr<float[]> values_;  // [outputs, slots, hidden]
  int oldest_, end_;
  Lease lease_;
};

// Made by `OnnxModel::new_state`, which it must not outlive.
class OnnxState : public State {
 public:
  OnnxState(OnnxModel& model, int capacity, int rows, Lease lease);
  ~OnnxState() override;
  int length() const override { return length_; }
  int pending() const override { return pending_; }
  int capacity() const override { return capacity_; }
  void keep(int count) override;
  void crop(int length) override;
  FeatureState* keep_features() override;
  void read_with(const AdapterSpan& span) override;

 private:
  friend class OnnxModel;
  void settle(int length);

  OnnxModel& model_;
  const int capacity_, rows_;
  Lease lease_;
  bool open_ = false;  // the model counts its rows
  int length_ = 0, pending_ = 0;
  Zeros cache_;  // [caches, KV heads, slots, size]; keys in tiles, [slots / 16, size, 16]
  std::unique_ptr<Recurrence> recurrence_;
  std::unique_ptr<FeatureRows> features_;
  std::unique_ptr<Binding> binding_;
  int bound_width_ = 0, bound_rows_ = -1;  // what is bound now
  const float* bound_place_ = nullptr;
  bool bound_adapter_ = false;
  std::shared_ptr<const Adapter> adapter_;
  int adapter_from_ = 0;
};

}  // namespace edgedecode
