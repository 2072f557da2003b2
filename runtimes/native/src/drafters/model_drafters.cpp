#include "model_drafters.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

namespace edgedecode {
namespace {

constexpr double kRate = 0.2, kLeastRate = 0.02;  // learning rate, the first and the lowest
constexpr double kLargest = 6.0;                  // features are clipped here
// How often the draft model's first, second, ... guess is expected to be right: tree_drafter.py.
constexpr int kGuesses = 4;
constexpr double kChances[kGuesses] = {0.6, 0.15, 0.07, 0.04};

Ids since(const Ids& context, size_t start) {
  return {context.begin() + std::min(start, context.size()), context.end()};
}

}  // namespace

Confidence::Features Confidence::features(const Leading& leading, int position) {
  const double others = leading.others;
  const double logit = others <= 0 ? kLargest : std::min(std::max(-std::log(others), -kLargest), kLargest);
  return {logit, std::min(leading.margin, kLargest), std::min<double>(position, kLargest)};
}

double Confidence::chance(const Features& seen) const {
  const double sum = weights_[0] * seen[0] + weights_[1] * seen[1] + weights_[2] * seen[2];
  return 1.0 / (1.0 + std::exp(-sum));
}

void Confidence::learn(const std::vector<Features>& seen, size_t accepted) {
  for (size_t index = 0; index < std::min(seen.size(), accepted + 1); ++index) {
    const double error = (index < accepted ? 1.0 : 0.0) - chance(seen[index]);
    const double rate = std::max(kLeastRate, kRate / std::sqrt(1 + static_cast<double>(judged_) / 16));
    ++judged_;
    for (int place = 0; place < 3; ++place) weights_[place] += rate * error * seen[index][place] / kLargest;
  }
}

ModelDrafter::ModelDrafter(std::string name, LanguageModel* model, std::unique_ptr<ModelState> state,
                           const DraftSetting& setting)
    : name_(std::move(name)), setting_(setting), state_(std::move(state)),
      sampler_(*setting.sampling, setting.vocabulary_size) {
  if (!model->card().token_ids.empty()) vocabulary_ = std::make_unique<TrimmedVocabulary>(model->card().token_ids);
}

void ModelDrafter::begin(const Text& context) {
  state_->begin(*context);
  guess_ = Guess();
  sampler_.begin(*context);
  sampler_length_ = context->size();
}

Draft ModelDrafter::propose(const Ids& context, int limit, const Plan& plan) {
  Draft draft;
  limit = state_->reach(context, limit, plan);
  if (limit <= 0) return draft;
  sampler_.extend(since(context, sampler_length_));
  sampler_length_ = context.size();
  const float* row = state_->catch_up(context);
  guess_ = Guess{context.size(), plan.floor > 0, {}, {}};
  double alive = 1;
  // Up to `limit` tokens, an end token, or until the chance that all are accepted falls below the floor.
  while (draft.size() < limit && (draft.empty() || !setting_.ends->count(draft.tokens.back()))) {
    if (!row) {
      if (state_->room() < 2) break;  // as in `reach`, the next token has a position too
      row = state_->follow({draft.tokens.back()});
    }
    if (!add(&draft, row, plan.floor, &alive)) break;
    row = nullptr;
  }
  if (draft.empty()) return draft;
  draft.source = name_;
  draft.vocabulary = vocabulary_.get();
  return draft;
}

// Appends the token drawn from the row after the draft, unless that lowers its chance below the floor.
bool ModelDrafter::add(Draft* draft, const float* row, double floor, double* alive) {
  const std::vector<int64_t>* ids = vocabulary_ ? &vocabulary_->ids : nullptr;
  std::optional<Leading> leading;
  if (floor > 0) leading = Sampler::leading(row, ids ? static_cast<int64_t>(ids->size()) : setting_.vocabulary_size);
  int64_t token = 0;
  if (leading && sampler_.takes_largest()) {
    token = ids ? (*ids)[leading->index] : leading->index;
  } else {
    const auto position = static_cast<int64_t>(guess_.at) + draft->size();
    token = sampler_.draw(row, draft->tokens, setting_.noise->key_at(position), ids);
  }
  if (leading) {
    guess_.tokens.push_back(static_cast<int32_t>(token));
    guess_.seen.push_back(Confidence::features(*leading, draft->size() + 1));
    *alive *= confidence_.chance(guess_.seen.back());
  }
  if (*alive < floor) return false;
  draft->tokens.push_back(static_cast<int32_t>(token));
  return true;
}

void ModelDrafter::observe(const Ids& context, const Verdict& verdict) {
  const Ids& emitted = verdict.tokens;
  if (!guess_.counts || guess_.at != context.size() - emitted.size()) return;
  std::vector<Confidence::Features> judged = guess_.seen;
  judged.resize(std::min(judged.size(), emitted.size()));
  size_t accepted = 0;
  const size_t compared = std::min(guess_.tokens.size(), emitted.size());
  while (accepted < compared && guess_.tokens[accepted] == emitted[accepted]) ++accepted;
  confidence_.learn(judged, accepted == compared ? judged.size() : accepted);
}

TreeDrafter::TreeDrafter(LanguageModel* model, const DraftSetting& setting)
    : setting_(setting),
      options_(setting.sampling->greedy() ? setting.sampling->ranking(kGuesses) : *setting.sampling),
      state_(model, setting.capacity, true), token_ids_(model->card().token_ids),
      sampler_(options_, setting.vocabulary_size) {
  if (!token_ids_.empty()) full_.assign(setting.vocabulary_size, -INFINITY);
}

void TreeDrafter::begin(const Text& context) {
  state_.begin(*context);
  sampler_.begin(*context);
  length_ = context->size();
  draft_ = Draft();
}

Draft TreeDrafter::propose(const Ids& context, int limit, const Plan& plan) {
  draft_ = Draft();
  limit = std::min(kMostNodes, state_.reach(context, limit, plan));
  if (limit <= 0) return draft_;
  sampler_.extend(since(context, length_));
  length_ = context.size();
  draft_ = grown(state_.catch_up(context), shape_of(limit));
  return draft_;
}

void TreeDrafter::observe(const Ids&, const Verdict& verdict) {
  if (draft_.empty() || verdict.draft.source != name_ || verdict.draft.tokens != draft_.tokens) return;
  std::vector<int> rows;
  Ids tokens;
  for (int node : verdict.path)
    if (rows_.count(node)) rows.push_back(rows_[node]), tokens.push_back(draft_.tokens[node]);
  state_.keep(rows, tokens);
}

// The tree of so many nodes with the most expected tokens: a node's chance is the product of `kChances` down to it
// (Sequoia, 2402.12374).
TreeDrafter::Shape TreeDrafter::shape_of(int nodes) {
  using Waiting = std::tuple<double, int, int>;  // negative chance, parent, rank
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<Waiting>> waiting;
  for (int rank = 0; rank < kGuesses; ++rank) waiting.emplace(-kChances[rank], -1, rank);
  Shape shape;
  for (int node = 0; node < nodes; ++node) {
    const auto [chance, parent, rank] = waiting.top();
    waiting.pop();
    for (int below = 0; below < kGuesses; ++below) waiting.emplace(chance * kChances[below], node, below);
    shape.parents.push_back(parent);
    shape.ranks.push_back(rank);
  }
  return shape;
}

// Level by level. Nodes without a guess are left out, with their descendants; an end token has no children.
Draft TreeDrafter::grown(const float* row, const Shape& shape) {
  const int nodes = static_cast<int>(shape.parents.size());
  std::map<int, int32_t> tokens;
  std::map<int, Ids> paths = {{-1, {}}};
  std::map<int, std::vector<int32_t>> guesses = {{-1, ranked(row, {})}};
  std::map<int, int> rows = {{-1, -1}}, depths = {{-1, -1}};
  for (int node = 0; node < nodes; ++node) depths[node] = depths[shape.parents[node]] + 1;
  for (int depth = 0, pending = 0;; ++depth) {
    std::vector<int> read, parents;
    Ids read_tokens;
    for (int node = 0; node < nodes; ++node) {
      const int parent = shape.parents[node], rank = shape.ranks[node];
      if (depths[node] != depth || rank >= static_cast<int>(guesses[parent].size())) continue;
      const int32_t token = tokens[node] = guesses[parent][rank];
      const bool inner = std::find(shape.parents.begin(), shape.parents.end(), node) != shape.parents.end();
      if (!inner || setting_.ends->count(token)) continue;
      read.push_back(node);
      read_tokens.push_back(token);
      parents.push_back(rows[parent]);
      paths[node] = paths[parent];
      paths[node].push_back(token);
    }
    if (read.empty()) return draft_of(shape, tokens, rows);
    const Rows logits = state_.grow(read_tokens, parents);
    for (size_t i = 0; i < read.size(); ++i) {
      rows[read[i]] = pending++;
      guesses[read[i]] = ranked(logits[static_cast<int>(i)], paths[read[i]]);
    }
  }
}

// The draft of the nodes that have a token, in the shape's order.
Draft TreeDrafter::draft_of(const Shape& shape, const std::map<int, int32_t>& tokens, const std::map<int, int>& rows) {
  Draft draft;
  std::map<int, int> places = {{-1, -1}};
  rows_.clear();
  bool chain = true;
  for (const auto& each : tokens) {
    const int place = places[each.first] = draft.size();
    const auto row = rows.find(each.first);
    if (row != rows.end()) rows_[place] = row->second;
    draft.tokens.push_back(each.second);
    draft.parents.push_back(places[shape.parents[each.first]]);
    chain = chain && draft.parents.back() == place - 1;
  }
  if (chain) draft.parents.clear();
  if (!draft.empty()) draft.source = name_;
  return draft;
}

// The ids that may follow, best first: by probability, or as the target's noise would sample them one after the other.
std::vector<int32_t> TreeDrafter::ranked(const float* row, const Ids& path) {
  for (size_t i = 0; i < token_ids_.size(); ++i) full_[token_ids_[i]] = row[i];
  if (!token_ids_.empty()) row = full_.data();
  const uint64_t key = setting_.noise->key_at(static_cast<int64_t>(length_ + path.size()));
  const Probs probs = sampler_.probs(row, path, key);
  std::vector<int64_t> order(probs.ids.size());
  std::iota(order.begin(), order.end(), 0);
  if (setting_.sampling->greedy()) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return probs.p[a] > probs.p[b]; });
  } else {
    order = first_arrivals(key, probs.ids.data(), probs.p.data(), static_cast<int64_t>(order.size()), kGuesses);
  }
  std::vector<int32_t> found;
  for (size_t i = 0; i < std::min<size_t>(kGuesses, order.size()); ++i)
    found.push_back(static_cast<int32_t>(probs.ids[order[i]]));
  return found;
}

}  // namespace edgedecode
