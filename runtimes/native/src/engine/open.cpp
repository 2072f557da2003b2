#include "open.h"

#include "../errors.h"

namespace edgedecode {

OpenModels::OpenModels(PackManifest found, MemoryPlan fitted)
    : pack(std::move(found)), plan(std::move(fitted)), budget(plan.limit) {}

std::unique_ptr<OpenModels> open_models(PackManifest pack, const OpenOptions& options, const SessionNeeds& needs) {
  load_engine(options.engine);  // counts as what the process holds
  MemoryPlan plan = plan_memory(pack, options, needs, resident_nbytes());
  auto found =
      std::make_unique<OpenModels>(std::move(pack), std::move(plan));  // a moved map keeps its elements' places
  for (size_t i = 0; i < 3; i++)  // process, variation, engine
    found->leases.push_back(found->budget.reserve(found->plan.holders[i].name, found->plan.holders[i].nbytes));
  MappedFiles files;
  const auto open = [&](const PackedModel& model) {
    return std::make_unique<OnnxModel>(model, found->plan.threads, found->budget, files);
  };
  found->target = open(*found->pack.find("target"));
  if (found->plan.draft) found->draft = open(*found->plan.draft);
  return found;
}

}  // namespace edgedecode
