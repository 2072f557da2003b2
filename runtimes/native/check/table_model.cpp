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
  int length() const override { return length_; }
  int pending() const override { return static_cast<int>(tokens.size()) - length_; }
  int capacity() const override { return capacity_; }
  void keep(int count) override {
    if (count < 0 || count > pending()) throw capability_error("so many rows are not pending");
    tokens.resize(length_ += count);
  }
  void crop(int length) override {
    if (length < 0 || length > length_) throw capability_error("cannot crop");
    tokens.resize(length_ = length);
  }
  void add(const Ids& more) {
    if (tokens.size() + more.size() > static_cast<size_t>(capacity_)) throw capability_error("rows do not fit");
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  // What a position's layers read: here its token.
  int oldest() const override { return std::max(0, length_ - kFeatures); }
  int width() const override { return 1; }
  void rows(int start, int stop, float* out) const override {
    for (int position = start; position < stop; ++position) *out++ = static_cast<float>(tokens.at(position));
  }

  Ids tokens;  // settled ones, then pending ones

 private:
  const int capacity_;
  int length_ = 0;
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

std::unique_ptr<State> TableModel::new_state(int capacity, int) { return std::make_unique<TableState>(capacity); }

Rows TableModel::forward(const Ids& tokens, State& given, int rows) {
  auto& state = static_cast<TableState&>(given);
  ++*passes_;
  state.add(tokens);
  logits_.clear();
  for (int position = static_cast<int>(state.tokens.size()) - rows; position < static_cast<int>(state.tokens.size());
       ++position)
    for (int column = 0; column < card_.rows; ++column) {
      const int64_t id = card_.token_ids.empty() ? column : card_.token_ids[column];
      const int32_t token = state.tokens[position], before = position ? state.tokens[position - 1] : 0;
      logits_.push_back((first_[int64_t{token} * width_ + id] + second_[int64_t{before} * width_ + id]) +
                        third_[int64_t{position % kPositions} * width_ + id]);
    }
  return {logits_.data(), rows, card_.rows};
}

Rows TableModel::draft(const Ids& tokens, State& given, const float* features, const float* hidden, float* out) {
  ++*passes_;
  static_cast<TableState&>(given).add(tokens);
  const auto read = static_cast<int64_t>(features ? features[tokens.size() - 1] : *hidden);
  logits_.resize(width_);
  for (int id = 0; id < width_; ++id)
    logits_[id] = first_[int64_t{tokens.back()} * width_ + id] + second_[read * width_ + id];
  *out = static_cast<float>(tokens.back());
  return {logits_.data(), 1, width_};
}

}  // namespace edgedecode
