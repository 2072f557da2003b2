// A packaged folder's memory in bytes, by holder, before anything is allocated, and what fits a limit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "budget.h"
#include "manifest.h"

namespace edgedecode {

constexpr int64_t kLibraryNbytes = 20 << 20;  // what loading the engine takes where it is not yet (measured: 18.5 MB)
int64_t buffers_nbytes(const PackedModel& model);
int64_t state_nbytes(const PackedModel& model, int capacity);
int64_t logits_nbytes(const PackedModel& model, int rows);
int64_t features_nbytes(const PackedModel& model);

// How a folder is opened, as `edgedecode_open` has it. Zeros leave the choice to the library.
struct OpenOptions {
  std::string engine = "libonnxruntime.so", experience;
  int64_t memory = 0;
  int context = 0, threads = 0;
  bool drafts = true, verify = false;

  static OpenOptions read(const Json& given);  // throws input_error
};

// What sessions need of the models, and hold besides.
struct SessionNeeds {
  int target_rows = 1, draft_rows = 1;  // of logits, the most of a pass
  std::function<std::vector<Holder>(int context, bool drafts)> others;
};

struct MemoryPlan {
  std::vector<Holder> holders;
  int64_t limit = 0;
  int context = 0, threads = 1;
  const PackedModel* draft = nullptr;  // a draft model, or a head; null: none
  std::vector<std::string> cuts;       // what was given up for the limit, a line each
  int64_t total() const;
};

// The longest context that fits is planned, then drafts are given up. Throws budget_exceeded if nothing fits,
// input_error for a context that is asked for and is none. held: what the process holds now.
MemoryPlan plan_memory(const PackManifest& pack, const OpenOptions& options, const SessionNeeds& needs, int64_t held);

}  // namespace edgedecode
