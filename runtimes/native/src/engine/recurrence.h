// What one sequence's recurrent layers hold, and how far it can go back, as runtimes/onnx/recurrence.py: a state has
// the rows up to a position; slots have the inputs of rows since, which the next pass applies if they were accepted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../pack/manifest.h"
#include "engine.h"
#include "onnx_state.h"

namespace edgedecode {

class Recurrence {
 public:
  static constexpr int kSlots = 64;  // rows whose inputs a layer keeps: more than a draft has, and a piece's end
  Recurrence(const std::vector<RecurrentShape>& shapes, int capacity);
  void bind_memory(Binding& binding);  // what never changes
  // Binds the rows of a pass from pending row `start`; takes a snapshot if it is due. Throws capability_error if a pass
  // has failed and the state was not rolled back.
  void begin(Binding& binding, int length, int start, int width);
  void commit(int length);
  void check_kept(int count) const;  // throws capability_error if states have applied more rows
  void keep(int count);
  // Drops pending rows, and settled ones from `length` on; returns the length left, perhaps a shorter one.
  int crop(int length, int settled, int pending);

  static int snapshot_count(int64_t states, int capacity);

 private:
  using Floats = std::unique_ptr<float[]>;
  void check(int length, int pending);
  void snapshot(bool large);
  int restore(int length);
  int newest() const { return snapshots_.empty() ? 0 : snapshots_.rbegin()->first; }

  const std::vector<RecurrentShape> shapes_;
  size_t values_ = 0;  // floats of all states
  Zeros states_;
  std::vector<Zeros> slots_;
  std::map<int, Floats> snapshots_;  // by position
  std::vector<Floats> free_;
  std::vector<int32_t> bound_;  // the slot of a pass's first row, then those of accepted rows
  int base_ = 0;  // the position that all states have, unless a pass has failed since
  int accepted_ = 0;  // settled rows from there on, in the first slots
  int before_ = 0;                 // pending rows in front of slot 0: states have them
  int next_ = 0;
  bool failed_ = false;  // a pass did, or was not noted: the next rollback goes to a snapshot
};

}  // namespace edgedecode
