// A pass over a recurrent layer as a list of rows, each behind the one that it continues.
#pragma once

#include <cstring>
#include <vector>

#include "kernels.h"
#include "recurrent.h"

namespace edgedecode {

// The memory of a layer with a convolution: the state holds the last inputs of the convolution, then what the recurrence
// keeps; a slot holds a row's channels, then its gates, which do not go through the convolution.
struct MemoryForm {
  size_t before;    // inputs of the convolution: its width less one
  size_t channels;  // of the convolution
  size_t gates;     // of a row
  size_t inner;     // floats that the recurrence keeps

  size_t inner_at() const { return (before * channels + kTile - 1) / kTile * kTile; }
  size_t values() const { return inner_at() + inner; }
  size_t slot() const { return (channels + gates + kTile - 1) / kTile * kTile; }
};

// First the rows that go into the state, then those that may be undone, each with a row before it as its parent; -1: the
// state as it is. The last ones are the pass's own.
struct Walk {
  const Recurrent& memory;
  const MemoryForm form;
  std::vector<int32_t> parents;
  std::vector<const float*> inputs;  // channels; behind those of rows from slots, their gates
  std::vector<const float*> taps;    // of each row, before + 1 inputs of the convolution, its own the last
  size_t applied = 0, own = 0;       // rows for the state; the first of the pass's own

  Walk(const Recurrent& memory_of, const MemoryForm& form_of, const float* x) : memory(memory_of), form(form_of) {
    const int32_t settled = static_cast<int32_t>(memory.applied);
    for (int32_t i = 0; i < settled; i++) add(i - 1, memory.slots + memory.apply[i] * form.slot());
    for (size_t slot = 0; slot < memory.start + memory.rows; slot++) {
      const int32_t parent = settled + static_cast<int32_t>(memory.parent(slot));
      add(parent, slot < memory.start ? memory.slots + slot * form.slot() : x + (slot - memory.start) * form.channels);
    }
    applied = settled + memory.through;
    own = count() - memory.rows;
    for (size_t row = 0; row < count(); row++) {
      int32_t at = static_cast<int32_t>(row);
      size_t left = form.before;  // inputs of the state, the oldest first
      float const* tap[kMostTaps];
      for (size_t i = form.before + 1; i-- > 0;) {
        tap[i] = at >= 0 ? inputs[at] : memory.state + --left * form.channels;
        if (at >= 0) at = parents[at];
      }
      taps.insert(taps.end(), tap, tap + form.before + 1);
    }
  }

  size_t count() const { return parents.size(); }

  // Puts the last inputs that the state holds, and those of the pass's own rows, in their places, once all rows are
  // computed. gate(row, i): a gate of an own row.
  template <class Gate>
  void finish(const Gate& gate) const {
    if (applied != 0) {
      std::vector<float> last(form.before * form.channels);
      for (size_t i = 0; i < form.before; i++)
        memcpy(&last[i * form.channels], taps[(applied - 1) * (form.before + 1) + 1 + i], form.channels * sizeof(float));
      memcpy(memory.state, last.data(), last.size() * sizeof(float));
    }
    for (size_t row = memory.through; row < memory.rows; row++) {
      float* slot = memory.slots + (memory.start + row - memory.through) * form.slot();
      memcpy(slot, inputs[own + row], form.channels * sizeof(float));
      for (size_t i = 0; i < form.gates; i++) slot[form.channels + i] = gate(row, i);
    }
  }

 private:
  void add(int32_t parent, const float* input) {
    parents.push_back(parent);
    inputs.push_back(input);
  }
};

}  // namespace edgedecode
