// Answers of the decode loop on toy models, with the drafters that a session may have.
#include "check.h"

#include <memory>
#include <set>

#include "decoding/loop.h"
#include "drafters/lookups.h"
#include "drafters/model_drafters.h"
#include "schedule/scheduler.h"
#include "table_model.h"

namespace edgedecode {
namespace {

// Tokens of even and odd id in turn; every fifth is forced to be the position's own.
struct Turns {
  int64_t vocabulary, count = 0;
  bool is_forced() const { return count % 5 == 4; }
  int32_t forced() const { return static_cast<int32_t>(count % vocabulary); }
  bool allows(int64_t id) const { return is_forced() ? id == forced() : (id + count) % 2 == 0; }
};

int32_t mask(void* user, uint32_t* bits, size_t nbytes) {
  const auto* turns = static_cast<Turns*>(user);
  for (size_t id = 0; id < nbytes * 8; ++id)
    if (turns->allows(static_cast<int64_t>(id))) bits[id / 32] |= 1u << (id % 32);
  return 0;
}

int32_t commit(void* user, uint32_t token) {
  auto* turns = static_cast<Turns*>(user);
  return turns->allows(token) ? ++turns->count, 0 : -1;
}

int32_t allows(void* user, const uint32_t* ids, size_t count) {
  Turns turns = *static_cast<Turns*>(user);
  size_t found = 0;
  while (found < count && commit(&turns, ids[found]) == 0) ++found;
  return static_cast<int32_t>(found);
}

int32_t forced(void* user, uint32_t* ids, size_t most) {
  const auto* turns = static_cast<Turns*>(user);
  if (!turns->is_forced() || most < 1) return 0;
  ids[0] = static_cast<uint32_t>(turns->forced());
  return 1;
}

class Answers {
 public:
  explicit Answers(const Json& given) : given_(given), vocabulary_(whole(given, "vocabulary")) {
    clock_.pass_seconds = given.at("pass_seconds", "setting").number("pass_seconds");
    target_ = model("target", &clock_.target_passes);
    if (!given.at("draft", "setting").is(Json::Kind::kNull)) draft_ = model("draft", &clock_.draft_passes);
    for (int32_t each : ids_of(given.at("ends", "setting"))) ends_.insert(each);
    for (const auto& each : given.at("sampling", "setting").object("sampling")) sampling_.take(each.first, each.second);
    sampling_.breaker_ids = {3, 5};
    capacity_ = whole(given, "capacity");
    state_ = target_->new_state(capacity_, 17);
    sampler_ = std::make_unique<Sampler>(sampling_, vocabulary_);
    open_drafting();
  }

  Json answer(const Json& asked) {
    const auto tokens = std::make_shared<Ids>(ids_of(asked.at("tokens", "request")));
    const size_t start = tokens->size();
    noise_.begin(asked.at("seed", "request").whole("seed"));
    Turns turns{vocabulary_};
    const edgedecode_constraint given{&turns, mask, commit, allows, forced};
    Constraint constraint(given, vocabulary_, ends_);
    DecodeSetting setting;
    setting.sampler = sampler_.get();
    setting.noise = &noise_;
    setting.drafting = drafting_.get();
    if (asked.at("constrained", "request").boolean("constrained"))
      setting.constraint = &constraint, setting.kind = "{}";
    setting.ends = &ends_;
    setting.clock = [this] { return clock_.now(); };
    Stats stats;
    stats.mode = "auto";
    Json::Array rounds;
    decode(*target_, *state_, tokens, whole(asked, "max_tokens"), setting, &stats, [&](const Verdict* verdict) {
      if (verdict)
        rounds.push_back(Json::Array{list(verdict->tokens), verdict->accepted, verdict->draft.source,
                                     list(verdict->draft.tokens), verdict->draft.match});
      return true;
    });
    return Json::Object{{"tokens", list(Ids(tokens->begin() + start, tokens->end()))},
                        {"rounds", rounds},
                        {"stats", stats.as_json()},
                        {"passes", Json::Array{clock_.target_passes, clock_.draft_passes}}};
  }

 private:
  std::unique_ptr<TableModel> model(const char* name, int64_t* passes) const {
    std::vector<int64_t> ids;
    if (std::string(name) == "draft")
      for (int32_t id : ids_of(given_.at("draft_ids", "setting"))) ids.push_back(id);
    return std::make_unique<TableModel>(given_.at(name, "setting").string(name), vocabulary_, whole(given_, "rows"),
                                        whole(given_, "context"), ids, passes);
  }

  std::unique_ptr<Drafter> drafter(const std::string& name) {
    const DraftSetting setting{&sampling_, &noise_, &ends_, vocabulary_, capacity_};
    if (name == "suffix") return std::make_unique<SuffixDrafter>(ends_);
    if (name == "recycle") return std::make_unique<RecycleDrafter>(vocabulary_, ends_);
    std::unique_ptr<ModelState> state;
    if (name == "head") {
      auto* features = dynamic_cast<FeatureState*>(state_.get());
      state = std::make_unique<HeadState>(draft_.get(), state_.get(), features, capacity_);
    } else {
      state = std::make_unique<ModelState>(draft_.get(), capacity_);
    }
    return std::make_unique<ModelDrafter>(name, draft_.get(), std::move(state), setting);
  }

  void open_drafting() {
    std::vector<std::unique_ptr<Drafter>> drafters;
    SchedulerOptions options;
    for (const Json& each : given_.at("drafters", "setting").array("drafters")) {
      drafters.push_back(drafter(each.string("drafter")));
      if (drafters.back()->free()) options.free.insert(drafters.back()->name());
      else options.models.push_back(drafters.back()->name());
    }
    if (drafters.empty()) return;
    const Clock clock = [this] { return clock_.now(); };
    const int fixed = whole(given_, "fixed");
    std::unique_ptr<Policy> policy;
    if (fixed) policy = std::make_unique<FixedLength>(fixed);
    else policy = std::make_unique<Scheduler>(&experience_, options);
    drafting_ = std::make_unique<Drafting>(std::move(drafters), std::move(policy), !fixed, clock);
  }

  const Json given_;
  const int vocabulary_;
  int capacity_ = 0;
  VirtualClock clock_;
  std::unique_ptr<TableModel> target_, draft_;
  std::set<int32_t> ends_;
  SamplingOptions sampling_;
  Noise noise_;
  Experience experience_;
  std::unique_ptr<State> state_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<Drafting> drafting_;
};

// A line with a setting starts a session; the others are its answers.
int run(const std::vector<std::string>&, std::istream& in, std::ostream& out) {
  std::unique_ptr<Answers> answers;
  return each_line(in, out, [&](const Json& call) {
    if (!call.find("target")) return answers->answer(call);
    answers = std::make_unique<Answers>(call);
    return Json();
  });
}

const Registered registered("loop", run);

}  // namespace
}  // namespace edgedecode
