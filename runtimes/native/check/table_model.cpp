#include "table_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "errors.h"

namespace edgedecode {
namespace {

constexpr int kPositions = 7, kFeatures = 100;  // positions of which features are kept

class TableState : public State, public FeatureState {
 public:
  explicit TableState(int capacity) : capacity_(capacity) {}
  int length() const override { return static_cast<int>(tokens.size()); }
  int pending() const override { return static_cast<int>(rows_.size()); }
  int capacity() const override { return capacity_; }
  void keep(const std::vector<int>& path) override {
    int previous = -1;
    for (int row : path) {
      if (row < 0 || row >= pending() || parents[row] != previous) throw capability_error("no path from the root");
      tokens.push_back(rows_[row]);
      previous = row;
    }
    drop();
  }
  void crop(int length) override {
    drop();
    if (length < 0 || length > this->length()) throw capability_error("cannot crop");
    tokens.resize(length);
  }
  void add(int32_t token, int parent) {
    if (length() + pending() >= capacity_) throw capability_error("rows do not fit");
    rows_.push_back(token), parents.push_back(parent);
  }
  int32_t row(int index) const { return rows_[index]; }
  // What a position's layers read: here its token.
  int oldest() const override { return std::max(0, length() - kFeatures); }
  int width() const override { return 1; }
  void rows(int start, int stop, float* out) const override {
    for (int position = start; position < stop; ++position) *out++ = static_cast<float>(tokens.at(position));
  }

  Ids tokens;
  std::vector<int> parents;

 private:
  void drop() { rows_.clear(), parents.clear(); }
  const int capacity_;
  Ids rows_;
};

std::vector<float> floats(std::ifstream& file, size_t count) {
  std::vector<float> found(count);
  file.read(reinterpret_cast<char*>(found.data()), static_cast<std::streamsize>(count * sizeof(float)));
  if (!file) throw capability_error("the tables are too short");
  return found;
}

}  // namespace

double VirtualClock::now() const {
  return pass_seconds * (static_cast<double>(target_passes) * 1.0 + static_cast<double>(draft_passes) * 0.1);
}

TableModel::TableModel(const std::string& tables, int vocabulary, int rows, int context, std::vector<int64_t> ids,
                       int64_t* passes)
    : width_(rows), passes_(passes) {
  std::ifstream file(tables, std::ios::binary);
  first_ = floats(file, static_cast<size_t>(vocabulary) * rows);
  second_ = floats(file, static_cast<size_t>(vocabulary) * rows);
  third_ = floats(file, static_cast<size_t>(kPositions) * rows);
  card_.name = "table";
  card_.rows = ids.empty() ? rows : static_cast<int>(ids.size());
  card_.vocabulary_size = vocabulary;
  card_.context = context;
  card_.hidden = 1;
  card_.token_ids = std::move(ids);
}

std::unique_ptr<State> TableModel::new_state(int capacity, int, bool) { return std::make_unique<TableState>(capacity); }

Rows TableModel::forward(const Ids& tokens, State& given, const std::vector<int>* parents,
                         const std::vector<int>& rows) {
  auto& state = static_cast<TableState&>(given);
  const int start = state.pending();
  ++*passes_;
  for (size_t i = 0; i < tokens.size(); ++i)
    state.add(tokens[i], parents ? (*parents)[i] : start + static_cast<int>(i) - 1);
  logits_.assign(rows.size() * card_.rows, NAN);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int row = start + rows[i], parent = state.parents[row];
    int position = state.length();
    for (int node = parent; node >= 0; node = state.parents[node]) ++position;
    const int32_t before = parent >= 0 ? state.row(parent) : state.tokens.empty() ? 0 : state.tokens.back();
    for (int column = 0; column < card_.rows; ++column) {
      const int64_t id = card_.token_ids.empty() ? column : card_.token_ids[column];
      logits_[i * card_.rows + column] =
          (first_[int64_t{state.row(row)} * width_ + id] + second_[int64_t{before} * width_ + id]) +
          third_[int64_t{position % kPositions} * width_ + id];
    }
  }
  return {logits_.data(), static_cast<int>(rows.size()), card_.rows};
}

Rows TableModel::draft(const Ids& tokens, State& given, const float* features, const float* hidden, float* out) {
  auto& state = static_cast<TableState&>(given);
  const int start = state.pending();
  ++*passes_;
  for (size_t i = 0; i < tokens.size(); ++i) state.add(tokens[i], start + static_cast<int>(i) - 1);
  const auto read = static_cast<int64_t>(features ? features[tokens.size() - 1] : *hidden);
  logits_.resize(width_);
  for (int id = 0; id < width_; ++id)
    logits_[id] = first_[int64_t{tokens.back()} * width_ + id] + second_[read * width_ + id];
  *out = static_cast<float>(tokens.back());
  return {logits_.data(), 1, width_};
}

}  // namespace edgedecode
