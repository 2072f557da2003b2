#include "scheduler.h"

#include <algorithm>
#include <cmath>

namespace edgedecode {
namespace {

// Reasons for these values: schedule/scheduler.py.
constexpr double kSwitch = 1.05, kHope = 0.7, kStopLoss = 1.0, kAskingShare = 0.02;
constexpr int kExploredLength = 2, kHorizon = 4, kReadWindow = 32, kMissed = 16, kDoubtEvery = 256;
constexpr int kCold = 7, kMostRest = 128;
constexpr const char* kProbing = "probing";

// The speed-up including a prefill's cost, spread over the expected tokens.
double with_prefill(double speed_up, double reading, int horizon) {
  return reading != 0 ? horizon / (horizon / speed_up + reading) : speed_up;
}

Plan made_plan(int draft_max, const std::string& drafter, const std::string& reason) {
  Plan plan;
  plan.draft_max = draft_max;
  plan.drafter = drafter;
  plan.reason = reason;
  return plan;
}

int truncated(double value, int most) { return static_cast<int>(std::max(-1.0, std::min<double>(value, most))); }

}  // namespace

Scheduler::Scheduler(Experience* experience, SchedulerOptions options)
    : experience_(experience), costs_(experience->costs), ledger_(&experience->ledger),
      acceptance_(&experience->history), options_(std::move(options)), patience_(kMissed) {}

bool Scheduler::is_model(const std::string& name) const {
  return std::find(options_.models.begin(), options_.models.end(), name) != options_.models.end();
}

int Scheduler::begin(const std::string& kind) {
  acceptance_.begin(kind);
  ledger_ = &experience_->ledger.under(kind);
  current_.clear();
  emitted_ = 0;
  won_ = 0;
  missed_ = misses_ = 0;
  remembered_.clear();
  patience_ = std::max<int64_t>(kMissed, patience_ / 2);
  cold_ = std::none_of(costs_.tables.begin(), costs_.tables.end(), [](const auto& each) { return each.second.plain; });
  if (cold_) return kCold;
  return model_pays() ? 0 : rest(asking());
}

void Scheduler::observe(const RoundCost& cost, const std::vector<Score>& scores) {
  for (const Score& score : scores) {
    acceptance_.add(score);
    if (options_.free.count(score.drafter)) missed_ += score.accepted, ++misses_;
  }
  if (cost.drafted) missed_ = misses_ = 0;
  const int emitted = cost.accepted + 1 + cost.repeats;
  emitted_ += emitted;
  answered_ += emitted;
  unmeasured_ = cost.drafted ? unmeasured_ + 1 : 0;
  ledger_->earn(emitted);
  if (cost.drafted || cost.draft_seconds != 0) settle(cost);
  if (cost.drafted && probing_) {
    costs_.doubt();
    patience_ *= 2;
  }
  if (is_model(cost.drafter)) {
    // If low confidence ended the draft, one more token counts as rejected: expected lengths must not exceed those that
    // the model's confidence allows.
    const int returned = cost.drafted + cost.cut;
    acceptance_.add({cost.drafter, returned + cost.stopped, cost.accepted, 0});
    if (cost.stopped || cost.accepted < returned) acceptance_.ended(cost.drafter, cost.accepted == returned);
  }
  acceptance_.passed(emitted);
  if (costs_.observe(cost, context_)) {  // they were measured beside other work, or this is
    costs_.doubt();
    if (experience_->history.tokens >= doubted_at_ + kDoubtEvery) {
      doubted_at_ = experience_->history.tokens;
      ledger_->doubt();
    }
  }
}

Plan Scheduler::plan(const Signals& signals) {
  context_ = signals.context_tokens;
  const int room = std::min(signals.remaining_tokens - 1, options_.draft_max);
  if (room < 1) return made_plan(0, "", "last token");
  CostTable& table = costs_.table(context_);
  if (!table.step || costs_.is_due(unmeasured_, context_)) return made_plan(0, "", "measuring");
  if (cold_) {  // where asking costs as much as a pass, the first ask waits too
    cold_ = false;
    return plain();
  }
  const Prices& prices = prices_.emplace(&costs_, &table);
  std::vector<Arm> arms;
  for (const Offer& offer : signals.offers)
    if (options_.free.count(offer.drafter)) arms.push_back(of_offer(offer, room, prices));
  if (answered_ >= models_from_ || is_model(current_))
    for (const auto& each : signals.unread) arms.push_back(of_model(each.first, each.second, signals, room, prices));
  std::optional<Plan> plan;
  if (const Plan* found = best(arms)) plan = *found;
  if (!plan) plan = explore(arms, prices);
  if (!plan) plan = probe(signals.offers, room);
  if (!plan) return plain();
  ledger_->empty_rounds = 0;
  probing_ = plan->reason == kProbing;
  if (plan->drafter != current_) {
    current_ = plan->drafter;
    gained_ = 0;
  }
  return *plan;
}

// The plan of the arm with the highest expected speed-up; null if that is plain decoding.
const Plan* Scheduler::best(const std::vector<Arm>& arms) {
  const Plan* found = nullptr;
  double most = kSwitch;
  for (const Arm& arm : arms) {
    double speed_up = arm.speed_up;
    bool funded = ledger_->funds(arm.plan.drafter) > 0;
    if (arm.plan.drafter == current_) {
      speed_up *= options_.free.count(current_) ? kSwitch : kSwitch * kSwitch;  // a switch would lose its prefill
      funded = gained_ > -kStopLoss;
    }
    if (speed_up > most && funded) found = &arm.plan, most = speed_up;
  }
  return found;
}

// The plan of an exploratory draft by the most promising arm whose account can pay for it.
std::optional<Plan> Scheduler::explore(const std::vector<Arm>& arms, const Prices& prices) {
  std::optional<Plan> found;
  double most = kSwitch;
  for (const Arm& arm : arms) {
    const std::string& name = arm.plan.drafter;
    if (ledger_->funds(name) <= 0) continue;
    Rate rate;
    rate.host = prices.host(name, true);
    rate.least = true;
    double reading = 0;
    const int longest = std::min(kExploredLength, arm.longest);
    BestLength hope;
    if (is_model(name)) {
      rate.step = prices.step(name, true);
      reading = arm.unread * prices.read(name, true);
      hope = of_draft_model(name, longest, prices, rate);
    } else {
      const auto end = arm.alive.begin() + std::min<size_t>(longest, arm.alive.size());
      hope = prices.best_length({arm.alive.begin(), end}, longest, rate);
    }
    hope.speed_up = with_prefill(hope.speed_up, reading, arm.horizon);
    const double price = prices.round(hope.length, rate) - 1 + reading;
    if (hope.speed_up > most && ledger_->funds(name) >= price) {
      found = made_plan(hope.length, name, "exploring");
      found->read_max = arm.plan.read_max;
      most = hope.speed_up;
    }
  }
  return found;
}

// The plan of a short lookup if many would have been right: its cost may be known wrongly.
std::optional<Plan> Scheduler::probe(const std::vector<Offer>& offers, int room) const {
  if (missed_ < std::max(patience_, misses_) || offers.empty()) return {};
  const auto offer = std::max_element(offers.begin(), offers.end(),
                                      [](const Offer& a, const Offer& b) { return a.match < b.match; });
  return made_plan(std::min({kExploredLength, offer->length, room}), offer->drafter, kProbing);
}

Scheduler::Arm Scheduler::of_offer(const Offer& offer, int room, const Prices& prices) {
  Arm arm;
  arm.longest = std::min(offer.length, room);
  arm.alive = acceptance_.curve(offer.drafter, arm.longest, offer.match);
  Rate rate;
  rate.host = prices.host(offer.drafter);
  const BestLength best = prices.best_length(arm.alive, arm.longest, rate);
  arm.speed_up = best.speed_up;
  arm.plan = made_plan(best.length, offer.drafter, "speed-up expected");
  return arm;
}

Scheduler::Arm Scheduler::of_model(const std::string& name, int unread, const Signals& signals, int room,
                                   const Prices& prices) {
  Rate rate;
  rate.step = prices.step(name);
  rate.host = prices.host(name);
  const double read = prices.read(name);
  const int horizon = static_cast<int>(std::min<int64_t>(signals.remaining_tokens, emitted_ + kHorizon));
  const int window = std::min(unread, kReadWindow);
  const BestLength promised = of_draft_model(name, room, prices, rate);
  int before = std::max(0, unread - 1), read_max = 0;  // the first step reads the last one
  double speed_up = with_prefill(promised.speed_up, before * read, horizon);
  if (window < unread && (speed_up < kSwitch || before * read > ledger_->funds(name))) {
    before = window - 1;
    read_max = kReadWindow;
    speed_up = with_prefill(promised.speed_up, before * read, horizon);
  }
  Arm arm;
  arm.plan = made_plan(std::min(room, prices.with_slack(promised.length)), name, "speed-up expected");
  // The model's confidence ends the draft when one more token is not profitable.
  arm.plan.floor = prices.more(promised.length) * std::max(1.0, promised.speed_up);
  arm.plan.read_max = read_max;
  arm.speed_up = speed_up;
  arm.longest = room;
  arm.unread = before;
  arm.horizon = horizon;
  return arm;
}

// Whether a draft model is expected to pay, besides its prefill: an answer is too short to rest then.
bool Scheduler::model_pays() {
  CostTable& table = costs_.table(context_);
  if (!table.step) return false;
  const Prices prices(&costs_, &table);
  for (const std::string& name : options_.models) {
    Rate rate;
    rate.step = prices.step(name);
    rate.host = prices.host(name);
    if (ledger_->funds(name) > 0 && of_draft_model(name, options_.draft_max, prices, rate).speed_up > kSwitch)
      return true;
  }
  return false;
}

// The best draft length and its speed-up without prefill, computed again only if something changed.
BestLength Scheduler::of_draft_model(const std::string& name, int longest, const Prices& prices, const Rate& rate) {
  const Basis basis{longest, rate.step, rate.host, acceptance_.counted(name),
                    static_cast<int>(emitted_ / kRefit), prices.fitted()};  // acceptance ages with the text
  const auto known = remembered_.find({name, rate.least});
  if (known != remembered_.end() && known->second.first == basis) return known->second.second;
  Rate asked = rate;
  asked.stops = rate.least ? 0.0 : acceptance_.stops(name);
  const auto alive = acceptance_.curve(name, longest, 0, rate.least ? kHope : 0.0);
  const BestLength found = prices.best_length(alive, longest, asked);
  remembered_[{name, rate.least}] = {basis, found};
  return found;
}

// Adds a round's measured gain to its account, in its predicted time times the median error of recent ones.
void Scheduler::settle(const RoundCost& cost) {
  if (!prices_) return;
  const Prices& prices = *prices_;
  const std::string& name = cost.drafter;
  double drafting = 0, reading = 0;
  if (cost.draft_seconds != 0) {
    drafting = cost.steps() * prices.step(name) / prices.plain;
    reading = std::max(0, cost.read - 2) * prices.read(name) / prices.plain;
  }
  Rate rate;
  rate.host = prices.host(name);
  const double predicted = prices.round(cost.width - 1, rate) + drafting + reading;
  const double spent =
      (cost.pass_seconds + cost.draft_seconds + cost.host_seconds) / prices.seconds / prices.plain;
  const double gain = cost.accepted + 1 - predicted * costs_.drifted(spent / predicted, name);
  gained_ += gain + reading;
  if (options_.free.count(name)) won_ = std::min(Ledger::kGrant, std::max(0.0, won_ + gain));
  ledger_->settle(name, gain);
}

// Plain decoding, and a rest unless the gains of lookups in this answer pay for asking them again.
Plan Scheduler::plain() {
  const double cost = asking();
  current_.clear();
  ++ledger_->empty_rounds;
  won_ = std::max(0.0, won_ - cost);
  Plan plan = made_plan(0, "", kNoSpeedUp);
  plan.rest = won_ != 0 ? 0 : rest(cost);
  if (!options_.free.empty() && cost > kAskingShare)
    models_from_ = answered_ + 2 * plan.rest;  // of models all is known
  return plan;
}

// More rounds with each empty one, until asking costs half of the income.
int Scheduler::rest(double asking) const {
  const int worth = std::max(ledger_->empty_rounds, truncated(asking / kAskingShare, kMostRest));
  return std::min({kMostRest, worth, std::max(0, truncated(2 * asking / Ledger::kIncome, kMostRest))});
}

// The cost of asking drafters that propose nothing that pays, in baseline steps.
double Scheduler::asking() {
  const Recent *asked = costs_.host_of(kAsked), *plain = costs_.host_of(kNoDrafter);
  if (asked && asked->value) return *asked->value - (plain && plain->value ? *plain->value : 0.0);
  const std::optional<double> step = costs_.table(context_).step;
  return step ? guess::kDraftSeconds / *step : 0.0;
}

}  // namespace edgedecode
