#include "onnx_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "../errors.h"
#include "../pack/plan.h"
#include "recurrence.h"

extern "C" void edgedecode_use_threads(int threads);

namespace edgedecode {
namespace {

constexpr int kLeastRows = 2;  // of logits that are held
constexpr int64_t kLeastFolded = 1 << 20;
constexpr const char *kFeatures = "features", *kHidden = "hidden", *kLastHidden = "last_hidden";

Ids read_ids(const std::string& path, int rows, int vocabulary_size) {
  Ids found(static_cast<size_t>(rows));
  const std::string data = file_text(path, 4 * int64_t{rows}).value_or("");
  bool valid = data.size() == found.size() * sizeof(int32_t);
  if (valid) memcpy(found.data(), data.data(), data.size());
  for (size_t i = 0; valid && i < found.size(); i++)
    valid = found[i] > (i == 0 ? -1 : found[i - 1]) && found[i] < vocabulary_size;
  if (!valid)
    throw manifest_error(path, " has not ", rows, " ascending ids: package the pack again");
  return found;
}

}  // namespace

OnnxModel::OnnxModel(const PackedModel& facts, int threads, Budget& budget, MappedFiles& files)
    : facts_(facts), threads_(threads), budget_(budget) {
  const int64_t workspace = facts.workspace_nbytes + threads * facts.thread_nbytes;
  const size_t width = static_cast<size_t>(facts.rows_per_pass);
  leases_.push_back(budget.reserve("weights:" + facts.name, facts.loaded_nbytes));
  leases_.push_back(budget.reserve("workspace:" + facts.name, workspace));
  leases_.push_back(budget.reserve("buffers:" + facts.name, buffers_nbytes(facts)));
  logits_lease_ = budget.reserve("logits:" + facts.name, 0);
  card_.name = facts.name;
  card_.rows = facts.rows;
  card_.vocabulary_size = facts.vocabulary_size;
  card_.context = facts.context;
  card_.hidden = facts.hidden;
  if (!facts.token_ids_file.empty()) {
    const Ids ids = read_ids(facts.token_ids_file, facts.rows, facts.vocabulary_size);
    card_.token_ids.assign(ids.begin(), ids.end());
  }
  int64_t folded = kLeastFolded;
  if (!facts.weights.empty()) {
    struct stat found = {};
    if (stat(facts.weights.c_str(), &found) == 0) folded = std::max<int64_t>(folded, 2 * found.st_size);
  }
  session_ = Session::open(facts.graph, threads, facts.arena_nbytes, facts.workspace_nbytes, folded);
  for (const auto& each : facts.tiles) {
    std::shared_ptr<Mapped>& file = files[each.second];
    if (file == nullptr) file = std::make_shared<Mapped>(each.second);
    tiles_.emplace_back(each.first, file);
  }
  for (auto* buffer : {&ids_, &positions_, &picked_}) buffer->resize(width);
  if (facts.head) nothing_.resize(width * static_cast<size_t>(facts.hidden));
}

std::unique_ptr<State> OnnxModel::new_state(int capacity, int rows) {
  if (capacity < 1) throw input_error("a state of ", capacity, " rows is out of range: 1 or more");
  if (capacity > card_.context)
    throw capability_error("a state of ", capacity, " rows is too long: ", card_.name, " supports ", card_.context,
                           " at most");
  std::unique_ptr<OnnxState> state(new OnnxState(*this, capacity, rows + kLeastRows,
                                                 budget_.reserve("kv:" + card_.name, state_nbytes(facts_, capacity))));
  std::lock_guard<std::mutex> lock(running_);
  held_.insert(state->rows_);
  state->open_ = true;
  hold_rows(state->rows_);
  state->cache_ = zeros(slot_count(capacity) * facts_.position_nbytes());
  if (!facts_.recurrent.empty()) state->recurrence_ = std::make_unique<Recurrence>(facts_.recurrent, capacity);
  state->binding_ = bind(*state);
  return state;
}

void OnnxModel::drop(OnnxState& state) {
  std::lock_guard<std::mutex> lock(running_);
  if (!state.open_) return;
  state.binding_ = nullptr;
  held_.erase(held_.find(state.rows_));
  const int rows = held_.empty() ? 0 : *held_.rbegin();
  if (rows >= logits_rows_) return;
  std::unique_ptr<float[]> fewer(rows ? new (std::nothrow) float[size_t(rows) * size_t(card_.rows)] : nullptr);
  if (rows && !fewer) return;  // a destructor: the old ones stay
  logits_ = std::move(fewer);
  logits_rows_ = rows;
  logits_lease_.resize(logits_nbytes(facts_, rows));
}

std::shared_ptr<const Adapter> OnnxModel::adapter(const PackedAdapter& facts) {
  std::shared_ptr<const Adapter> found = adapters_[facts.name].lock();
  if (!found) {
    Lease lease = budget_.reserve("adapter:" + facts.name, facts.nbytes);
    found.reset(new Adapter{facts, std::move(lease), Mapped(facts.file)});
    adapters_[facts.name] = found;
  }
  return found;
}

void OnnxModel::bind_adapter(OnnxState& state, bool on) {
  if (state.bound_adapter_ == on) return;
  for (const AdapterInput& each : state.adapter_->facts.inputs) {
    std::vector<int64_t> shape = each.shape;
    if (!on) shape[each.name.back() == 'a' ? 1 : 0] = 0;  // the rank
    const uint8_t* data = state.adapter_->file.data() + each.offset;
    state.binding_->input(each.name.c_str(), shape.size() == 3 ? Value(data, shape)
                                                               : Value(reinterpret_cast<const float*>(data), shape));
  }
  state.bound_adapter_ = on;
}

std::unique_ptr<FeatureRows> OnnxModel::new_features(int start) {
  if (facts_.features.empty())
    throw capability_error("the ", card_.name, " has no outputs that a drafting head reads: use the drafter suffix");
  return std::make_unique<FeatureRows>(facts_, start,
                                       budget_.reserve("features:" + card_.name, features_nbytes(facts_)));
}

void OnnxModel::hold_rows(int count) {
  if (count <= logits_rows_) return;
  logits_lease_.resize(logits_nbytes(facts_, count));
  logits_ = nullptr;  // before the new ones: never both
  logits_rows_ = 0;
  logits_.reset(new float[static_cast<size_t>(count) * static_cast<size_t>(card_.rows)]);
  logits_rows_ = count;
}

std::unique_ptr<Binding> OnnxModel::bind(OnnxState& state) {
  std::unique_ptr<Binding> binding = session_->bind();
  const int64_t slots = slot_count(state.capacity_);
  int64_t at = 0;
  for (const CacheShape& each : facts_.caches) {
    const std::vector<int64_t> shape = {1, each.heads, slots, each.size};
    const Value value = facts_.int8 ? Value(static_cast<int8_t*>(state.cache_.get()) + at, shape)
                                    : Value(static_cast<float*>(state.cache_.get()) + at, shape);
    binding->input(("past_key_values." + each.name).c_str(), value);
    binding->output(("present." + each.name).c_str(), value);
    at += each.heads * slots * each.size;
  }
  if (state.recurrence_ != nullptr) state.recurrence_->bind_memory(*binding);
  for (const auto& each : tiles_)
    binding->input(each.first.c_str(), Value(each.second->data(), {each.second->nbytes()}));
  binding->input("seqlens_k", Value(&last_slot_, {1}));
  binding->input("total_length", Value(&total_, {1}));
  binding->input("tree_parents", Value(static_cast<const int32_t*>(nullptr), {0}));  // a chain
  return binding;
}

void OnnxModel::check_tokens(const Ids& tokens) const {
  if (tokens.empty()) throw input_error("a forward pass needs at least one token");
  const int count = card_.token_ids.empty() ? card_.rows : card_.vocabulary_size;
  const auto range = std::minmax_element(tokens.begin(), tokens.end());
  if (*range.first < 0 || *range.second >= count)
    throw input_error("token ids ", *range.first, " to ", *range.second, " are out of range: 0 to ", count - 1);
}

Rows OnnxModel::append(const Ids& tokens, State& state, int rows, const HeadRows* read) {
  std::lock_guard<std::mutex> lock(running_);
  OnnxState& own = static_cast<OnnxState&>(state);
  const int count = static_cast<int>(tokens.size()), used = own.length_ + own.pending_, first = count - rows;
  check_tokens(tokens);
  if (rows < 0 || first < 0)
    throw input_error("the rows asked for are out of range in a pass of ", count, " rows");
  if (count > own.capacity_ - used)
    throw capability_error(count, " more rows do not fit the state: ", used, " of ", own.capacity_,
                           " are used (shorten the prompt, or raise \"context\")");
  hold_rows(rows);
  for (int start = 0, width = 0; start < count; start += width) {
    width = std::min(count - start, facts_.rows_per_pass);
    const int plain = own.adapter_ ? own.adapter_from_ - used - start : 0;
    if (plain > 0) width = std::min(width, plain);
    const int done = std::max(0, start - first);  // rows that earlier passes gave
    const int wanted = std::max(0, start + width - first) - done;
    pass(own, tokens.data() + start, width, own.pending_ + start, wanted, done, read);
  }
  own.pending_ += count;
  return {logits_.get(), rows, card_.rows};
}

void OnnxModel::pass(OnnxState& state, const int32_t* tokens, int width, int start, int count, int slot,
                     const HeadRows* read) {
  const int first = state.length_ + start;
  Binding& binding = *state.binding_;
  if (state.adapter_) bind_adapter(state, first >= state.adapter_from_);
  for (int i = 0; i < width; i++) {
    ids_[i] = tokens[i];
    positions_[i] = first + i;
  }
  std::iota(picked_.begin(), picked_.begin() + count, width - count);
  total_ = first + width;
  last_slot_ = total_ - 1;
  if (state.bound_width_ != width) {
    state.bound_width_ = 0;  // after an error between the two, both are bound again
    binding.input("input_ids", Value(ids_.data(), {1, width}));
    binding.input("position_ids", Value(positions_.data(), {1, width}));
    state.bound_width_ = width;
  }
  float* place = logits_.get() + static_cast<int64_t>(slot) * card_.rows;
  if (state.bound_rows_ != count || state.bound_place_ != place) {
    state.bound_rows_ = -1;
    binding.input("rows", Value(picked_.data(), {count}));
    binding.output("logits", Value(place, {count, card_.rows}));
    state.bound_rows_ = count;
    state.bound_place_ = place;
  }
  if (facts_.head) bind_head(state, width, start, count, read);
  if (state.features_ != nullptr) state.features_->bind(binding, first, width);
  edgedecode_use_threads(threads_);
  const std::string what = "a pass of " + std::to_string(width) + " rows of the " + card_.name;
  if (state.recurrence_) state.recurrence_->begin(binding, state.length_, start, width);
  session_->run(binding, what);
  if (state.recurrence_) state.recurrence_->commit(state.length_);
}

void OnnxModel::bind_head(OnnxState& state, int width, int start, int rows, const HeadRows* read) {
  const bool features = read != nullptr && read->features;
  const int64_t wide = features ? facts_.features_width : facts_.hidden;
  const float* values = read == nullptr ? nothing_.data() : read->values + (start - read->first) * wide;
  state.binding_->input(kFeatures, Value(values, {1, features ? width : 0, facts_.features_width}));
  state.binding_->input(kLastHidden, Value(values, {1, features ? 0 : width, facts_.hidden}));
  after_.resize(static_cast<size_t>(rows) * static_cast<size_t>(facts_.hidden));
  state.binding_->output(kHidden, Value(after_.data(), {rows, facts_.hidden}));
}

Rows OnnxModel::draft(const Ids& tokens, State& state, const float* features, const float* hidden, float* out) {
  const HeadRows read = {features != nullptr ? features : hidden, features != nullptr, state.pending()};
  const Rows found = append(tokens, state, 1, &read);
  std::copy(after_.end() - facts_.hidden, after_.end(), out);
  return found;
}

}  // namespace edgedecode
