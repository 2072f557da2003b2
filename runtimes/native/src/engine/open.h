// Opens the models of a packaged folder within its memory plan.
#pragma once

#include <atomic>
#include <memory>

#include "../decoding/model.h"
#include "../pack/budget.h"
#include "../pack/manifest.h"
#include "../pack/plan.h"
#include "onnx_model.h"

namespace edgedecode {

// A folder's models, open. States and leases must be gone before it is.
struct OpenModels {
  PackManifest pack;
  MemoryPlan plan;
  Budget budget;
  std::vector<Lease> leases;  // of the process itself
  std::unique_ptr<LanguageModel> target, draft;  // draft: a draft model or a head; null: none

  OpenModels(PackManifest found, MemoryPlan fitted);
  std::atomic<bool> given_back{false};  // the drafts
  void close_drafts() {
    if (draft) given_back = true;
    draft = nullptr;
  }
};

// Plans, leases and opens. Throws the errors of `plan_memory` and `OnnxModel`.
std::unique_ptr<OpenModels> open_models(PackManifest pack, const OpenOptions& options, const SessionNeeds& needs);

}  // namespace edgedecode
