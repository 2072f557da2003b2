#include "lookups.h"

#include <algorithm>

namespace edgedecode {
namespace {

// Reasons for these values: edgedecode/drafters/suffix.py and recycle.py.
constexpr int kShortestMatch = 2, kLongestMatch = 64, kGrowth = 4;
constexpr int kRowBudget = 16384, kSeldom = 8;
constexpr double kLeast = 0.1, kUseful = 0.2, kPrior = 0.5, kPriorWeight = 4.0, kFade = 0.98;

// The last place at which the text's last `length` tokens begin and end before `end`; -1: none.
int rfind(const Ids& text, int length, int end) {
  const int32_t* tail = text.data() + text.size() - length;
  for (int start = end - length; start >= 0; --start)
    if (text[start + length - 1] == tail[length - 1] && std::equal(tail, tail + length - 1, text.begin() + start))
      return start;
  return -1;
}

struct Match {
  int place = -1, length = 0;  // where the earlier occurrence ends
};

// The most recent place of the longest suffix. Each search starts where the previous one matched and looks for a longer
// match, so that together they scan the text once.
Match longest_earlier(const Ids& text) {
  const int length = static_cast<int>(text.size());
  int end = length - 1, matched = 0, place = -1;
  while (matched < kLongestMatch) {
    const int wanted = std::max(matched + 1, kShortestMatch), start = wanted <= length ? rfind(text, wanted, end) : -1;
    if (start < 0) break;
    end = start + wanted;
    matched = wanted;
    place = end - 1;
    while (matched < std::min(end, kLongestMatch) && text[place - matched] == text[length - 1 - matched]) ++matched;
  }
  return {place, matched};
}

}  // namespace

Draft SuffixDrafter::propose(const Ids& context, int limit, const Plan&) {
  Draft draft;
  const Match match = longest_earlier(context);
  if (match.length < kShortestMatch || limit <= 0) return draft;
  const size_t most = std::min(limit, 1 + kGrowth * match.length), start = match.place + 1;
  draft.source = name_;
  draft.match = match.length;
  while (draft.tokens.size() < most) {  // short pieces tend to repeat
    const size_t next = start + draft.tokens.size();
    const int32_t token = next < context.size() ? context[next] : draft.tokens[next - context.size()];
    draft.tokens.push_back(token);
    if (ends_.count(token)) break;
  }
  return draft;
}

bool SuffixDrafter::repeats(const Ids& context, int length) {
  const int size = static_cast<int>(context.size());
  return size > length && rfind(context, length, size - 1) >= 0;
}

RecycleDrafter::RecycleDrafter(int vocabulary_size, const std::set<int32_t>& ends)
    : ends_(ends),
      followers_(int64_t{vocabulary_size} * kBreadth, -1),
      rows_(std::max(1, kRowBudget / vocabulary_size)) {}

void RecycleDrafter::begin(const Text& context) {
  // Another conversation's ids are forgotten; the hit rates of ranks stay, which tell nothing of a text.
  if (context_ &&
      (context->size() < context_->size() || !std::equal(context_->begin(), context_->end(), context->begin())))
    std::fill(followers_.begin(), followers_.end(), -1);
  context_ = context;
}

Draft RecycleDrafter::propose(const Ids& context, int limit, const Plan&) {
  Draft draft;
  int32_t token = context.back();
  double alive = 1;
  while (draft.size() < limit) {
    const int rank = best_rank(draft.size());
    alive *= rate(draft.size(), rank);
    token = followers(token)[rank];
    if (token < 0 || alive < kLeast) break;
    draft.tokens.push_back(token);
    if (ends_.count(token)) break;
  }
  if (!draft.empty()) draft.source = name_;
  return draft;
}

void RecycleDrafter::observe(const Ids& context, const Verdict& verdict) {
  ++rounds_;
  if (rounds_ % kSeldom && rate(0, best_rank(0)) < kUseful) return;
  const int count = static_cast<int>(verdict.tokens.size());
  const int32_t before = context[context.size() - count - 1];
  for (int depth = 0; depth < count; ++depth)
    score(depth, depth ? verdict.tokens[depth - 1] : before, verdict.tokens[depth]);
  learn(verdict, before);
}

// How often the follower of this rank came next, at this depth from the start of a round.
double RecycleDrafter::rate(int depth, int rank) const {
  double prior = rank == 0 ? kPrior : 0.0;
  if (depth) prior = rate(0, rank);  // the prior is the rate at the start of a round
  depth = std::min(depth, kDeepest - 1);
  return (hits_[depth][rank] + kPriorWeight * prior) / (tried_[depth] + kPriorWeight);
}

int RecycleDrafter::best_rank(int depth) const {
  const double* hits = hits_[std::min(depth, kDeepest - 1)];
  const auto best = static_cast<int>(std::max_element(hits, hits + kBreadth) - hits);
  return hits[best] > hits[0] + kPriorWeight * kPrior ? best : 0;
}

void RecycleDrafter::score(int depth, int32_t token, int32_t follower) {
  const int32_t* ranked = followers(token);
  if (ranked[0] < 0) return;
  depth = std::min(depth, kDeepest - 1);
  for (double& count : hits_[depth]) count *= kFade;
  tried_[depth] = kFade * tried_[depth] + 1;
  const auto rank = std::find(ranked, ranked + kBreadth, follower) - ranked;
  if (rank < kBreadth) hits_[depth][rank] += 1;
}

// Stores as many rows as the budget allows: along the emitted path, its last row first, then the others. The last row
// is the most useful one, because its token was not drafted.
void RecycleDrafter::learn(const Verdict& verdict, int32_t before) {
  const int path = static_cast<int>(verdict.tokens.size());
  std::vector<int> rows;
  for (int row = path - 1; row >= 0; --row) rows.push_back(row);
  for (int row = path; row <= verdict.draft.size(); ++row) rows.push_back(row);
  rows.resize(std::min<size_t>(rows.size(), rows_));
  std::reverse(rows.begin(), rows.end());  // the preferred of one id's rows is written last
  for (int row : rows) {
    const auto ranked = verdict.rows.top(kBreadth, row);
    std::copy(ranked.begin(), ranked.end(), followers(row ? verdict.draft.tokens[row - 1] : before));
  }
}

}  // namespace edgedecode
