// What was learnt about a pack's models on this device, shared by its sessions and kept as JSON.
#pragma once

#include "../json.h"
#include "acceptance.h"
#include "costs.h"
#include "medians.h"

namespace edgedecode {

struct Experience {
  CostModel costs;
  History history;
  Ledger ledger;

  // Lets all that an earlier process learnt, perhaps beside other work, count as one measurement at most.
  void doubt();
  Json as_json() const;
  // Throws input_error for values that are out of range.
  static Experience from_json(const Json& value);
};

}  // namespace edgedecode
