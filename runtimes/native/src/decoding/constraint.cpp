#include "constraint.h"

#include <cmath>

#include "../errors.h"

namespace edgedecode {

Draft Constraint::forced(int room) {
  Draft draft;
  draft.source = kForced;
  draft.tokens.resize(std::max(0, std::min(room, kMostForced)));
  if (draft.empty() || !given_.forced) return Draft();
  const int32_t count =
      given_.forced(given_.user, reinterpret_cast<uint32_t*>(draft.tokens.data()), draft.tokens.size());
  return draft.cut(std::max(0, count));
}

Draft Constraint::allowed(const Draft& draft) {
  if (draft.empty() || !given_.allows) return Draft();
  const auto* ids = reinterpret_cast<const uint32_t*>(draft.tokens.data());
  return draft.cut(std::max(0, given_.allows(given_.user, ids, draft.tokens.size())));
}

const float* Constraint::masked(const float* row, const Ids& path) {
  commit(path);
  std::vector<uint32_t> bits((rows_ + 31) / 32, 0);
  if (const int32_t said = given_.mask(given_.user, bits.data(), bits.size() * sizeof(uint32_t)))
    throw capability_error("the constraint's `mask` failed: it returned ", said);
  row_.assign(rows_, -INFINITY);
  bool any = false;
  for (int id = 0; id < rows_; ++id)
    if (bits[id / 32] >> (id % 32) & 1) row_[id] = row[id], any = true;
  if (!any) throw capability_error("the grammar allows no further token of this model's vocabulary");
  return row_.data();
}

void Constraint::extend(const Ids& tokens) {
  commit(tokens);
  path_ = 0;
}

void Constraint::commit(const Ids& tokens) {
  for (; path_ < tokens.size(); ++path_)
    if (!ends_.count(tokens[path_]) && given_.commit(given_.user, static_cast<uint32_t>(tokens[path_])) != 0)
      throw capability_error("the constraint refuses token ", tokens[path_], ", which its mask allowed");
}

}  // namespace edgedecode
