// The scheduler as Python drives it: calls in, plans out.
#include "check.h"

#include <memory>

#include "schedule/scheduler.h"

namespace edgedecode {
namespace {

RoundCost cost_of(const Json& value) {
  RoundCost cost;
  cost.width = whole(value, "width");
  cost.pass_seconds = value.at("pass_seconds", "cost").number("pass_seconds");
  cost.host_seconds = value.at("host_seconds", "cost").number("host_seconds");
  cost.drafter = value.at("drafter", "cost").string("drafter");
  cost.drafted = whole(value, "drafted");
  cost.accepted = whole(value, "accepted");
  cost.read = whole(value, "read");
  cost.draft_seconds = value.at("draft_seconds", "cost").number("draft_seconds");
  cost.match = whole(value, "match");
  cost.cut = whole(value, "cut");
  cost.stopped = value.at("stopped", "cost").boolean("stopped");
  cost.repeats = whole(value, "repeats");
  return cost;
}

Signals signals_of(const Json& value) {
  Signals signals;
  signals.context_tokens = whole(value, "context_tokens");
  signals.remaining_tokens = whole(value, "remaining_tokens");
  for (const Json& each : value.at("offers", "signals").array("offers"))
    signals.offers.push_back(
        {each.at("drafter", "offer").string("drafter"), whole(each, "length"), whole(each, "match")});
  for (const Json& each : value.at("unread", "signals").array("unread")) {
    const Json::Array& pair = each.array("unread");
    signals.unread.emplace_back(pair[0].string("drafter"), static_cast<int>(pair[1].integer("tokens")));
  }
  return signals;
}

std::vector<Score> scores_of(const Json& value) {
  std::vector<Score> scores;
  for (const Json& each : value.array("scores"))
    scores.push_back({each.at("drafter", "score").string("drafter"), whole(each, "length"), whole(each, "accepted"),
                      whole(each, "match")});
  return scores;
}

Json plan_json(const Plan& plan) {
  return Json::Object{{"draft_max", plan.draft_max},
                      {"drafter", plan.drafter.empty() ? Json() : Json(plan.drafter)},
                      {"floor", plan.floor},
                      {"read_max", plan.read_max},
                      {"rest", plan.rest},
                      {"reason", plan.reason}};
}

// The first line has the options; "new": another scheduler with what was learnt; "reload": that goes through JSON.
int run(const std::vector<std::string>&, std::istream& in, std::ostream& out) {
  auto experience = std::make_unique<Experience>();
  std::unique_ptr<Scheduler> scheduler;
  SchedulerOptions options;
  return each_line(in, out, [&](const Json& call) {
    Json result;
    if (const Json* given = call.find("options")) {
      options.draft_max = whole(*given, "draft_max");
      for (const Json& each : given->at("free", "options").array("free")) options.free.insert(each.string("free"));
      for (const Json& each : given->at("models", "options").array("models"))
        options.models.push_back(each.string("models"));
      scheduler = std::make_unique<Scheduler>(experience.get(), options);
    } else if (const Json* kind = call.find("begin")) {
      result = Json(scheduler->begin(kind->string("begin")));
    } else if (const Json* signals = call.find("plan")) {
      result = plan_json(scheduler->plan(signals_of(*signals)));
    } else if (const Json* cost = call.find("observe")) {
      scheduler->observe(cost_of(*cost), scores_of(call.at("scores", "call")));
    } else if (call.find("reload")) {
      scheduler.reset();
      const Json kept = experience->as_json();
      *experience = Experience::from_json(Json::parse(kept.text(), "experience"));
      experience->doubt();
      scheduler = std::make_unique<Scheduler>(experience.get(), options);
      result = kept;
    }
    return result;
  });
}

const Registered registered("scheduler", run);

}  // namespace
}  // namespace edgedecode
