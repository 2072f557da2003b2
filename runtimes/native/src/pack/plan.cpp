#include "plan.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <thread>

#include "../engine/onnx_state.h"
#include "../engine/recurrence.h"
#include "../errors.h"
#include "files.h"

namespace edgedecode {
namespace {

constexpr int64_t kEngineNbytes = 10 << 20;     // see onnx_footprint.py
constexpr int64_t kVariationNbytes = 2 << 20;   // growth of the process beside its leases
constexpr int kLeastContext = 512, kContextStep = 64, kUsualContext = 8192;
constexpr int64_t kSmallNbytes = 32 << 20;      // such weights fit the cache: see runtimes/threads.py
constexpr int kMostThreads = 8, kMostAsked = 256;  // by default, and by an option: what the kernels' pool has

// Physical cores of which none is much slower than the fastest, at most eight: decoding waits for the slowest thread.
int fast_cores() {
  std::vector<int64_t> speeds;
  std::set<std::string> seen;
  const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int core = 0; core < count; core++) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(core);
    const auto siblings = file_text(folder + "/topology/thread_siblings_list");
    if (!seen.insert(siblings.value_or(std::to_string(core))).second) continue;
    speeds.push_back(std::atoll(file_text(folder + "/cpufreq/cpuinfo_max_freq").value_or("").c_str()));
  }
  const int64_t fastest = *std::max_element(speeds.begin(), speeds.end());
  const auto fast = std::count_if(speeds.begin(), speeds.end(), [&](int64_t each) { return each * 10 >= fastest * 7; });
  return std::max(1, std::min(kMostThreads, static_cast<int>(fast)));
}

void add(std::vector<Holder>& holders, const PackedModel& model, int context, int rows, int threads) {
  holders.push_back({"weights:" + model.name, model.loaded_nbytes});
  holders.push_back({"workspace:" + model.name, model.workspace_nbytes + threads * model.thread_nbytes});
  holders.push_back({"buffers:" + model.name, buffers_nbytes(model)});
  holders.push_back({"kv:" + model.name, state_nbytes(model, std::min(context, model.context))});
  holders.push_back({"logits:" + model.name, logits_nbytes(model, rows + 2)});
}

}  // namespace

OpenOptions OpenOptions::read(const Json& given) {
  OpenOptions options;
  for (const auto& each : given.object("options")) {
    const std::string& name = each.first;
    const Json& value = each.second;
    if (name == "engine") options.engine = value.string(name);
    else if (name == "experience") options.experience = value.string(name);
    else if (name == "memory") options.memory = value.integer(name, 0);
    else if (name == "context") options.context = static_cast<int>(value.integer(name, 0, INT32_MAX));
    else if (name == "threads") options.threads = static_cast<int>(value.integer(name, 0, kMostAsked));
    else if (name == "drafts") options.drafts = value.boolean(name);
    else if (name == "verify") options.verify = value.boolean(name);
    else throw unknown_name("option", name, "engine, memory, context, threads, drafts, verify or experience");
  }
  if (options.engine.empty()) throw input_error("engine is empty: give the path of libonnxruntime.so");
  return options;
}

int64_t buffers_nbytes(const PackedModel& model) {
  return int64_t{model.rows_per_pass} * (3 * 8 + (model.head ? 4 * int64_t{model.hidden} : 0));
}

int64_t state_nbytes(const PackedModel& model, int capacity) {
  int64_t states = 0, rows = 0;
  for (const RecurrentShape& each : model.recurrent) states += each.values, rows += each.width;
  const int64_t recurrent =
      states == 0 ? 0 : 4 * (states * (1 + Recurrence::snapshot_count(states, capacity)) + Recurrence::kSlots * rows);
  return slot_count(capacity) * model.position_nbytes() + recurrent;
}

int64_t logits_nbytes(const PackedModel& model, int rows) {
  return int64_t{4} * rows * (1 + model.logits_copies) * model.rows;
}

int64_t features_nbytes(const PackedModel& model) {
  return static_cast<int64_t>(model.features.size()) * FeatureRows::kSlots * model.hidden * 4;
}

int64_t MemoryPlan::total() const {
  int64_t sum = 0;
  for (const Holder& each : holders) sum += each.nbytes;
  return sum;
}

MemoryPlan plan_memory(const PackManifest& pack, const OpenOptions& options, const SessionNeeds& needs, int64_t held) {
  const PackedModel& target = *pack.find("target");
  const PackedModel* drafting = pack.find("head") != nullptr ? pack.find("head") : pack.find("draft");
  if (options.context < 0 || options.context > target.context)
    throw input_error("a context of ", options.context, " is out of range: 1 to ", target.context);
  MemoryPlan plan;
  plan.limit = options.memory > 0 ? options.memory : default_limit();
  plan.threads = options.threads > 0 ? options.threads : target.loaded_nbytes < kSmallNbytes ? 1 : fast_cores();
  const int most = options.context > 0 ? options.context : std::min(target.context, kUsualContext);
  const int least = options.context > 0 ? most : std::min(kLeastContext, most);
  const auto set = [&](int context, const PackedModel* draft) {
    plan.context = context;
    plan.draft = draft;
    plan.holders = {
        {"process", held}, {"variation between processes", kVariationNbytes}, {"engine code", kEngineNbytes}};
    add(plan.holders, target, context, needs.target_rows, plan.threads);
    if (draft != nullptr) add(plan.holders, *draft, context, needs.draft_rows, plan.threads);
    if (draft != nullptr && draft->head) plan.holders.push_back({"features:target", features_nbytes(target)});
    if (needs.others)
      for (const Holder& each : needs.others(context, draft != nullptr)) plan.holders.push_back(each);
    return plan.total() <= plan.limit;
  };
  const PackedModel* wanted = options.drafts ? drafting : nullptr;
  if (set(most, wanted)) return plan;
  for (const PackedModel* draft : {wanted, static_cast<const PackedModel*>(nullptr)}) {
    if (!set(least, draft)) continue;
    int low = 0, high = (most - least + kContextStep - 1) / kContextStep;  // steps beyond the least context
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (set(std::min(most, least + middle * kContextStep), draft))
        low = middle;
      else
        high = middle - 1;
    }
    set(std::min(most, least + low * kContextStep), draft);
    if (plan.context < most) plan.cuts.push_back("context beyond " + std::to_string(plan.context) + " tokens");
    if (draft != wanted) plan.cuts.push_back("drafts by the " + wanted->name + " model");
    return plan;
  }
  throw budget_exceeded(format_nbytes(plan.total()), " are needed for a context of ", least, ", but only ",
                        format_nbytes(plan.limit), " are the budget: raise \"memory\" to ", size_option(plan.total()),
                        " or more", options.context > 0 ? ", or give a smaller \"context\"" : "");
}

}  // namespace edgedecode
