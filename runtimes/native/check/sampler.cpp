// Draws from rows of logits: a line of options, then lines of a row with its noise and what came before it.
#include "check.h"

#include <cmath>
#include <memory>

#include "sampling/sampler.h"

namespace edgedecode {
namespace {

int run(const std::vector<std::string>&, std::istream& in, std::ostream& out) {
  SamplingOptions options;
  std::unique_ptr<Sampler> sampler;
  std::vector<int64_t> ids;
  return each_line(in, out, [&](const Json& call) {
    Json result;
    if (const Json* given = call.find("options")) {
      options = SamplingOptions();
      for (const auto& each : given->object("options")) options.take(each.first, each.second);
      for (int32_t id : ids_of(call.at("breakers", "call"))) options.breaker_ids.push_back(id);
      ids.clear();
      for (int32_t id : ids_of(call.at("ids", "call"))) ids.push_back(id);
      sampler = std::make_unique<Sampler>(options, call.at("size", "call").integer("size"));
    } else if (const Json* tokens = call.find("begin")) {
      sampler->begin(ids_of(*tokens), call.at("generated", "call").integer("generated"));
    } else if (const Json* more = call.find("extend")) {
      sampler->extend(ids_of(*more));
    } else {
      std::vector<float> row;
      for (const Json& each : call.at("row", "call").array("row"))
        row.push_back(each.is(Json::Kind::kNull) ? -INFINITY : static_cast<float>(each.number("logit")));
      const Ids path = ids_of(call.at("path", "call"));
      result = Json(sampler->draw(row.data(), path, call.at("key", "call").whole("key"), ids.empty() ? nullptr : &ids));
    }
    return result;
  });
}

const Registered registered("sampler", run);

}  // namespace
}  // namespace edgedecode
