#include "drafting.h"

#include <algorithm>

#include "../errors.h"
#include "../schedule/medians.h"

namespace edgedecode {
namespace {

constexpr size_t kMostOpen = 4;  // offers kept per drafter

}  // namespace

void OpenOffers::add(const std::string& drafter, const Draft& draft, size_t at) {
  for (auto& each : open_)
    if (each.first == drafter) return each.second.push_back({at, draft});
  open_.push_back({drafter, {{at, draft}}});
}

std::vector<Score> OpenOffers::settle(const Ids& tokens) {
  std::vector<Score> scores;
  for (auto& each : open_) {
    std::vector<Open> waiting;
    for (size_t index = 0; index < each.second.size(); ++index) {
      const Open& offer = each.second[index];
      const int known = static_cast<int>(tokens.size()) - static_cast<int>(offer.at);
      int length = offer.draft.size(), matched = 0;
      while (matched < std::min(length, known) && offer.draft.tokens[matched] == tokens[offer.at + matched]) ++matched;
      if (matched == std::min(known, length) && matched < length) {
        if (each.second.size() - index <= kMostOpen) {
          waiting.push_back(offer);
          continue;
        }
        length = matched;  // the rest is unknown
      }
      scores.push_back({each.first, length, matched, offer.draft.match});
    }
    each.second = std::move(waiting);
  }
  return scores;
}

void Rest::begin(const Plan& plan, int match) {
  if (plan.draft_max) between_ = kWatch;
  left_ = plan.rest;
  next_look_ = plan.rest - between_;
  copied_ = std::max(kCopied, 2 * match);
}

bool Rest::goes_on(const Ids& tokens, Drafter* watching) {
  if (left_ && left_ == next_look_) {
    if (watching && watching->repeats(tokens, copied_)) {
      left_ = 0;
    } else {  // looks that find nothing become rare
      between_ = std::min(kMostBetween, 2 * between_);
      next_look_ -= between_;
    }
  }
  if (left_ <= 0) return false;
  --left_;
  return true;
}

std::optional<RoundCost> Rest::cost() {
  if (passes_.empty()) return {};
  RoundCost cost;
  cost.pass_seconds = lower_median(passes_);
  cost.host_seconds = lower_median(hosts_);
  cost.repeats = static_cast<int>(passes_.size()) - 1;
  passes_.clear(), hosts_.clear();
  return cost;
}

Drafting::Drafting(std::vector<std::unique_ptr<Drafter>> drafters, std::unique_ptr<Policy> policy, bool offers,
                   Clock clock)
    : drafters_(std::move(drafters)), policy_(std::move(policy)), offering_(offers), clock_(std::move(clock)) {
  for (const auto& drafter : drafters_)
    if (offering_ && !watching_ && drafter->free() && drafter->watches()) watching_ = drafter.get();
}

void Drafting::begin(const Text& tokens, const std::string& kind) {
  end_rest();
  offers_.clear();
  plan_ = Plan();
  plan_.rest = policy_->begin(kind);
  if (plan_.rest) plan_.reason = kNoSpeedUp;
  tokens_ = tokens;
  round_.reset();
  rest_.begin(plan_, 0);
  for (const auto& drafter : drafters_) drafter->begin(tokens);
}

Draft Drafting::propose(const Ids& tokens, int room, Constraint* constraint) {
  if (drafters_.empty()) return Draft();
  if (rest_.goes_on(tokens, watching_)) return Draft();  // the plan stays: a resting plan is plain
  end_rest();
  Drafts drafts;
  int match = 0;
  for (const auto& drafter : drafters_) {
    if (!offering_ || !drafter->free()) continue;
    drafts.emplace_back(drafter.get(), drafter->propose(tokens, std::min(room, kMaxDraft), Plan()));
    match = std::max(match, drafts.back().second.match);
  }
  plan_ = policy_->plan(signals(drafts, room));
  rest_.begin(plan_, match);
  for (const auto& each : drafts)
    if (!each.second.empty()) offers_.add(each.first->name(), each.second, tokens.size());
  round_.emplace();
  round_->limit = std::min(plan_.draft_max, room);
  if (round_->limit <= 0) return Draft();
  Draft draft = drafted(plan_.drafter.empty() ? drafters_[0]->name() : plan_.drafter, drafts, &*round_);
  if (constraint && !draft.empty()) {
    draft = constraint->allowed(draft);
    if (draft.empty()) plan_.reason = "the grammar allows no draft";
  }
  return draft;
}

void Drafting::observe(const Ids& tokens, const Verdict& verdict) {
  if (!round_) return;
  for (const auto& drafter : drafters_) drafter->observe(tokens, verdict);
}

void Drafting::spent(const Verdict& verdict, double pass_seconds, double host_seconds) {
  if (!round_) return rest_.spend(pass_seconds, host_seconds);
  const Round round = *round_;
  round_.reset();
  RoundCost cost;
  cost.drafted = verdict.draft.size();
  cost.width = 1 + cost.drafted;
  cost.pass_seconds = pass_seconds;
  cost.host_seconds = std::max(0.0, host_seconds + learning_seconds_ - round.draft_seconds);
  cost.drafter = round.drafter;
  cost.accepted = verdict.accepted;
  cost.read = round.read;
  cost.draft_seconds = round.draft_seconds;
  cost.match = verdict.draft.match;
  cost.cut = round.returned - cost.drafted;
  cost.stopped = plan_.floor > 0 && round.returned < round.limit && verdict.outcome != Outcome::kEnded;
  const double started = clock_();
  policy_->observe(cost, offers_.settle(*tokens_));
  learning_seconds_ = clock_() - started;
}

void Drafting::close() {
  rest_.end();
  end_rest();
  watching_ = nullptr;
  drafters_.clear();
}

std::string Drafting::names() const {
  std::string found;
  for (const auto& drafter : drafters_) found += (found.empty() ? "" : "+") + drafter->name();
  return found;
}

// The draft of the round's drafter. One with a model is timed: it is engine time, not host overhead.
Draft Drafting::drafted(const std::string& name, const Drafts& offered, Round* round) {
  Drafter* drafter = nullptr;
  for (const auto& each : drafters_)
    if (each->name() == name) drafter = each.get();
  if (!drafter) throw input_error("the policy chose the drafter ", name, "; the session has ", names());
  Draft draft;
  const auto known =
      std::find_if(offered.begin(), offered.end(), [&](const auto& each) { return each.first == drafter; });
  if (known != offered.end()) {
    draft = known->second.cut(round->limit);
  } else {
    round->read = drafter->unread(*tokens_);
    const double started = clock_();
    draft = drafter->propose(*tokens_, round->limit, plan_);
    if (!drafter->free()) round->draft_seconds = clock_() - started;
  }
  round->returned = draft.size();
  if (round->returned || round->draft_seconds != 0) round->drafter = name;
  if (!round->returned) plan_.reason = "no proposal from " + name;
  draft.source = name;
  return draft;
}

void Drafting::end_rest() {
  if (const auto cost = rest_.cost()) policy_->observe(*cost, offers_.settle(*tokens_));
}

Signals Drafting::signals(const Drafts& drafts, int room) {
  Signals found;
  found.context_tokens = static_cast<int>(tokens_->size());
  found.remaining_tokens = room + 1;
  for (const auto& each : drafts)
    if (!each.second.empty()) found.offers.push_back({each.first->name(), each.second.size(), each.second.match});
  for (const auto& drafter : drafters_)
    if (!drafter->free()) found.unread.emplace_back(drafter->name(), drafter->unread(*tokens_));
  return found;
}

}  // namespace edgedecode
