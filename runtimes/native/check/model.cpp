// `edgedecode-check model FOLDER ENGINE [OPTIONS]`: runs a model's passes as lines of JSON say, and writes digests of
// what they give. `edgedecode-check pack FOLDER`: reads a folder; `edgedecode-check plan FOLDER OPTIONS`: its memory.
#include <map>

#include "check.h"
#include "engine/open.h"
#include "errors.h"
#include "pack/files.h"

namespace edgedecode {
namespace {

std::string digest(const float* values, size_t count) {
  return sha256(values, count * sizeof(float));
}

Json described(const Error& error) { return Json::Object{{"error", error.what()}, {"code", error.code}}; }

class Runner {
 public:
  explicit Runner(OpenModels& models) : models_(models) {}

  Json step(const Json& line) {
    const std::string kind = line.at("op", "line").string("op");
    if (kind == "memory")
      return Json::Object{{"used", models_.budget.used()}, {"peak", peak_nbytes()}, {"plan", models_.plan.total()}};
    const int64_t id = line.at("state", "line").integer("state");
    if (kind == "new") return start(id, line);
    if (kind == "close") return states_.erase(id) == 1;
    State& state = *states_.at(id).state;
    if (kind == "keep") state.keep(whole(line, "count"));
    if (kind == "crop") state.crop(whole(line, "length"));
    if (kind == "forward") return forward(states_.at(id), line);
    if (kind == "keep_features") state.keep_features();
    if (kind == "draft") return draft(states_.at(id), line);
    return Json::Object{{"length", state.length()}, {"pending", state.pending()}};
  }

 private:
  struct Held {
    LanguageModel* model;
    std::unique_ptr<State> state;
  };

  Json start(int64_t id, const Json& line) {
    const std::string name = line.at("model", "line").string("model");
    LanguageModel* model = (name == "target" ? models_.target : models_.draft).get();
    if (model == nullptr) throw capability_error("there is no " + name);
    auto state = model->new_state(whole(line, "capacity"), whole(line, "rows"));
    states_[id] = {model, std::move(state)};
    return Json::Object{{"capacity", states_[id].state->capacity()}};
  }

  Json forward(Held& held, const Json& line) {
    const Rows rows = held.model->forward(ids_of(line.at("tokens", "line")), *held.state, whole(line, "rows"));
    return Json::Object{
        {"logits", digest(rows.data, static_cast<size_t>(rows.count) * static_cast<size_t>(rows.width))}};
  }

  // Reads the features of the target's state "of" from "start" on, or the head's last output.
  Json draft(Held& held, const Json& line) {
    const Ids tokens = ids_of(line.at("tokens", "line"));
    const size_t hidden = static_cast<size_t>(models_.draft->card().hidden);
    const Json* of = line.find("of");
    std::vector<float> features;
    if (of != nullptr) {
      const int first = whole(line, "start");
      features.resize(tokens.size() * static_cast<size_t>(models_.pack.find("head")->features_width));
      FeatureState* source = states_.at(of->integer("of")).state->keep_features();
      source->rows(first, first + static_cast<int>(tokens.size()), features.data());
    }
    std::vector<float> out(hidden);
    const Rows rows = models_.draft->draft(tokens, *held.state, of != nullptr ? features.data() : nullptr,
                                          of != nullptr ? nullptr : after_.data(), out.data());
    after_ = out;
    return Json::Object{{"logits", digest(rows.data, static_cast<size_t>(rows.width))},
                        {"hidden", digest(out.data(), hidden)}};
  }

  OpenModels& models_;
  std::map<int64_t, Held> states_;
  std::vector<float> after_;
};

int run_model(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out) {
  const auto models =
      open_models(PackManifest::read(arguments.at(0)), OpenOptions::read(Json::parse(arguments.at(1), "options")), {});
  Runner runner(*models);
  return each_line(in, out, [&](const Json& line) {
    try {
      return runner.step(line);
    } catch (const Error& error) {
      return described(error);
    }
  });
}

// For each line, options: the holders of the plan, or the error.
int run_plan(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out) {
  return each_line(in, out, [&](const Json& line) {
    try {
      const OpenOptions given = OpenOptions::read(line);
      const PackManifest pack = PackManifest::read(arguments.at(0));
      if (given.verify) pack.verify();
      const MemoryPlan plan = plan_memory(pack, given, {}, 10 << 20);
      Json holders = Json::Object{};
      for (const Holder& each : plan.holders) holders.set(each.name, each.nbytes);
      Json::Array cuts(plan.cuts.begin(), plan.cuts.end());
      return Json(Json::Object{{"context", plan.context},
                               {"threads", plan.threads},
                               {"total", plan.total()},
                               {"draft", plan.draft == nullptr ? "" : plan.draft->name},
                               {"holders", holders},
                               {"cuts", cuts}});
    } catch (const Error& error) {
      return described(error);
    }
  });
}

const Registered model("model", run_model), plan("plan", run_plan);

}  // namespace
}  // namespace edgedecode
