// What recurrent operators share: the memory of their layer, and which of its rows a pass applies.
//
// A layer has a state, which holds the rows up to a position of its own, and slots with the inputs of rows since. A pass
// first applies the rows that were accepted since the last one, in order, as one-row passes would have done; then it
// computes its own rows along their ancestors, stores their inputs, and leaves the state as it is. So rows are dropped
// without a copy or a second pass of the model ("keep the inputs, not the states": ReplaySSM; for trees TreeWY,
// 2608.20961, whose matrix form is not used, as it adds in another order). The position is the layer's own, so that a
// pass that failed in a later layer may be run again. Only a chain of more rows than there are slots is written through.
#ifndef EDGE_RECURRENT_H
#define EDGE_RECURRENT_H

#include "onnxruntime.h"

namespace edgedecode {

// The inputs from `first` on: state [kStateHeader + values], slots [count, width], rows [1 + accepted] (the slot of the
// pass's first row; slots of settled rows, in order, of which the last is at the last settled position), total [1]
// (positions and pending rows, those of this pass included), parents [pending rows, or 0 for a chain].
// The outputs from 1 on: state and slots, usually in the same memory.
struct Recurrent {
  static constexpr size_t kStateHeader = 16;  // floats: the position, and what aligns the values behind it
  float* state = nullptr;
  float* slots = nullptr;
  size_t values = 0, width = 0, most = 0;
  size_t rows = 0;      // of this pass
  size_t start = 0;     // the slot of its first one
  size_t through = 0;   // how many of them are written to the state at once
  const int32_t* apply = nullptr;  // the slots to apply first
  size_t applied = 0;
  const char* fault = nullptr;

  Recurrent(ort::Context* context, size_t first, size_t row_count, size_t state_values, size_t slot_width)
      : values(state_values), width(slot_width), rows(row_count) {
    const ort::Tensor past = ort::input(context, first), kept = ort::input(context, first + 1),
                      list = ort::input(context, first + 2), total = ort::input(context, first + 3),
                      parents = ort::input(context, first + 4);
    fault = open(context, past, kept, list, total, parents);
  }

  // The slot that a row continues; -1: the state. Beyond it, further rows back in time count down.
  int64_t parent(int64_t slot) const { return tree_ == nullptr ? slot - 1 : tree_[slot + before_] - before_; }

  // Once the accepted rows are in the state, and again once rows were written through.
  void begin_change() { set_position(-1); }  // a failure in between leaves no position, and the next pass is refused
  void end_applying() { set_position(settled_); }
  void end_writing() { set_position(settled_ + static_cast<int64_t>(through)); }

 private:
  const int32_t* tree_ = nullptr;
  int64_t before_ = 0;   // pending rows before slot 0
  int64_t settled_ = 0;  // the position of slot 0 and of the first row behind the accepted ones

  int64_t position() const {
    int64_t found;
    memcpy(&found, state - kStateHeader, sizeof found);
    return found;
  }
  void set_position(int64_t position) { memcpy(state - kStateHeader, &position, sizeof position); }

  const char* open(ort::Context* context, const ort::Tensor& past, const ort::Tensor& kept, const ort::Tensor& list,
                   const ort::Tensor& total, const ort::Tensor& parents) {
    if (past.count() != static_cast<int64_t>(kStateHeader + values) || kept.dimensions != 2 ||
        kept.last() != static_cast<int64_t>(width) || list.count() < 1 || total.count() != 1)
      return "a recurrent layer's memory does not fit the node's attributes";
    most = kept.shape[0];
    const int32_t* numbers = list.as<const int32_t>();
    const int64_t accepted = list.count() - 1, tree = parents.data == nullptr ? 0 : parents.count();
    if (numbers[0] < 0 || static_cast<size_t>(numbers[0]) > most) return "a recurrent layer has no such slot";
    start = numbers[0];
    for (int64_t i = 1; i <= accepted; i++)
      if (numbers[i] < 0 || static_cast<size_t>(numbers[i]) >= most) return "a recurrent layer has no such slot";
    settled_ = *total.as<const int32_t>() - static_cast<int64_t>(rows + start);
    if (tree != 0) {
      tree_ = parents.as<const int32_t>();
      before_ = tree - static_cast<int64_t>(rows + start);
    }
    if (settled_ < accepted || before_ < 0) return "a recurrent layer's rows do not fit the positions";
    through = start + rows > most ? start + rows - most : 0;
    if (through != 0 && start != 0) return "more rows are pending than a recurrent layer keeps";
    for (int64_t slot = 0; slot < static_cast<int64_t>(start + rows); slot++)
      if (parent(slot) >= slot || parent(slot) < -1 || (through != 0 && parent(slot) != slot - 1))
        return "a recurrent layer's rows are no chain or tree behind the settled ones";
    void* state_out = ort::output(context, 1, past.shape, past.dimensions);
    void* slots_out = ort::output(context, 2, kept.shape, kept.dimensions);
    if (state_out == nullptr || slots_out == nullptr) return "no memory for a recurrent layer";
    if (state_out != past.data) memcpy(state_out, past.data, past.count() * sizeof(float));
    if (slots_out != kept.data) memcpy(slots_out, kept.data, kept.count() * sizeof(float));
    state = static_cast<float*>(state_out) + kStateHeader;
    slots = static_cast<float*>(slots_out);
    const int64_t there = position(), begin = settled_ - accepted;
    if (there < begin || there > settled_) return "a recurrent layer's state is not where its rows begin";
    apply = numbers + 1 + (there - begin);
    applied = settled_ - there;
    return nullptr;
  }
};

}  // namespace edgedecode

#endif
