// A loaded model and its KV states, as in edgedecode/decoding/model.py.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace edgedecode {

using Ids = std::vector<int32_t>;

struct ModelCard {
  std::string name;
  int rows = 0;             // width of the logits, padding included
  int vocabulary_size = 0;  // ids of the tokenizer; logits from there on are padding, never sampled
  int context = 0;          // most positions of a state
  int hidden = 0;           // hidden size
  std::vector<int64_t> token_ids;  // row -> id of a trimmed vocabulary, ascending; empty: a row is its id
};

// Logits of the rows asked for, [count, width]: a view, valid until the model's next pass.
struct Rows {
  const float* data = nullptr;
  int count = 0, width = 0;
  const float* operator[](int row) const { return data + static_cast<int64_t>(row) * width; }
};

// What some layers of a target read at a state's last positions, [positions, layers * hidden].
class FeatureState {
 public:
  virtual ~FeatureState() = default;
  virtual int oldest() const = 0;  // first position that is kept
  virtual int width() const = 0;   // layers * hidden
  virtual void rows(int start, int stop, float* out) const = 0;
};

struct PackedAdapter;

// The adapter of each position: none before `start`.
struct AdapterSpan {
  const PackedAdapter* adapter = nullptr;
  int start = 0;
  // How many leading positions have the same adapter in both.
  int shared_with(const AdapterSpan& other) const {
    if (adapter == other.adapter && (!adapter || start == other.start)) return INT_MAX;
    return std::min(adapter ? start : INT_MAX, other.adapter ? other.start : INT_MAX);
  }
};

// The KV state of one sequence: `length` settled positions, then `pending` rows.
class State {
 public:
  virtual ~State() = default;
  virtual int length() const = 0;
  virtual int pending() const = 0;
  virtual int capacity() const = 0;
  // Settles the first pending rows, and drops the others.
  virtual void keep(int count) = 0;
  // Drops pending rows, then rolls back to `length` or, with recurrent layers, further.
  virtual void crop(int length) = 0;
  // Keeps what a drafting head reads, of rows from now on; the same each time. Null, or an error: it has none of it.
  virtual FeatureState* keep_features() { return nullptr; }
  // The adapter of later passes, which is loaded now. Throws budget_exceeded: none is used then.
  virtual void read_with(const AdapterSpan&) {}
};

// One pass at a time; any number of states.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual const ModelCard& card() const = 0;
  // rows: the most logits rows of one pass. Throws budget_exceeded.
  virtual std::unique_ptr<State> new_state(int capacity, int rows) = 0;
  // Appends tokens as pending rows, returns the logits of the last `rows`.
  virtual Rows forward(const Ids& tokens, State& state, int rows) = 0;
  // A drafting head's pass: one layer that reads what the target computed (EAGLE-3, 2503.01840). Each row reads a
  // position's features or the row before's output, exactly one of both given, and the next token.
  // Returns the last row's logits; `out` takes its output, [hidden]. Only asked of a head.
  virtual Rows draft(const Ids& tokens, State& state, const float* features, const float* hidden, float* out) = 0;
};

}  // namespace edgedecode
