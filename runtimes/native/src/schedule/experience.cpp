#include "experience.h"

#include <cmath>
#include <cstdlib>

#include "../errors.h"

namespace edgedecode {
namespace {

constexpr double kMostAmount = 1e15;  // quotients and products of a few of them stay finite
constexpr double kRounding = 1e-6;

Json depths_json(const Counts::Depths& counts, double scale) {
  Json::Array found;
  for (double count : counts) found.push_back(count * scale);
  return found;
}

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

template <class Values>
Json numbers_json(const Values& values) {
  Json::Object found;
  for (const auto& each : values) found.emplace_back(each.first, each.second);
  return found;
}

Json kind_json(const History& history, const Ledger& ledger) {
  Json::Object tables;
  for (const auto& each : history.tables) {
    const Counts& counts = each.second;
    tables.emplace_back(each.first.first + ":" + std::to_string(each.first.second),
                        Json::Object{{"accepted", depths_json(counts.accepted, counts.scale)},
                                     {"tried", depths_json(counts.tried, counts.scale)}});
  }
  return Json::Object{
      {"history", tables}, {"stops", numbers_json(history.stops)}, {"balances", numbers_json(ledger.balances)}};
}

Json table_json(const CostTable& table) {
  Json::Object beta, seen;
  for (const auto& each : table.known_beta()) {
    const std::string width = std::to_string(each.first);
    beta.emplace_back(width, each.second);
    seen.emplace_back(width, table.seen[each.first] != 0 ? table.seen[each.first] : kPriorWeight);
  }
  return Json::Object{{"step", optional_json(table.step)}, {"plain", table.plain}, {"beta", beta}, {"seen", seen}};
}

double amount(const Json& value, const std::string& what, double least = 0, double most = kMostAmount) {
  const double found = value.number(what);
  if (!(least <= found && found <= most)) throw input_error(what, " is out of range");
  return found;
}

int number_of(const std::string& key, int least, int most) {
  char* end = nullptr;
  const long found = std::strtol(key.c_str(), &end, 10);
  if (key.empty() || *end || found < least || found > most)
    throw input_error("experience: \"", key, "\" is out of range");
  return static_cast<int>(found);
}

std::optional<double> optional_amount(const Json& value, const std::string& what, double least = 0) {
  if (value.is(Json::Kind::kNull)) return {};
  return amount(value, what, least);
}

Counts::Depths depths_of(const Json& value, const std::string& what) {
  const Json::Array& given = value.array(what);
  if (given.size() != kDepths) throw input_error(what, " has a wrong number of depths");
  Counts::Depths found{};
  for (int depth = 0; depth < kDepths; ++depth) found[depth] = amount(given[depth], what);
  return found;
}

void read_kind(const Json& value, History* history, Ledger* ledger) {
  const std::string what = "experience";
  for (const auto& each : value.at("history", what).object(what)) {
    const size_t colon = each.first.rfind(':');
    if (colon == std::string::npos) throw input_error("experience: \"", each.first, "\" names no match bucket");
    Counts counts;
    counts.accepted = depths_of(each.second.at("accepted", what), what);
    counts.tried = depths_of(each.second.at("tried", what), what);
    for (int depth = 0; depth < kDepths; ++depth)
      if (counts.accepted[depth] > counts.tried[depth] + kRounding)
        throw input_error("experience: \"", each.first, "\" has more accepted tokens than tried ones");
    const int bucket = number_of(each.first.substr(colon + 1), 0, kMatchBuckets - 1);
    history->tables[{each.first.substr(0, colon), bucket}] = counts;
  }
  for (const auto& each : value.at("stops", what).object(what))
    history->stops[each.first] = amount(each.second, what, 0, 1);
  for (const auto& each : value.at("balances", what).object(what))
    ledger->balances[each.first] = amount(each.second, what, -kMostAmount);
}

CostTable table_of(const Json& value, const std::string& what) {
  std::map<int, double> beta;
  for (const auto& each : value.at("beta", what).object(what))
    beta[number_of(each.first, 2, kWidest)] = amount(each.second, what, -kMostAmount);
  const int64_t plain = value.at("plain", what).integer(what);
  CostTable table(optional_amount(value.at("step", what), what, 1e-12), beta, std::max<int64_t>(0, plain));
  for (const auto& each : value.at("seen", what).object(what))
    table.seen[number_of(each.first, 2, kWidest)] = amount(each.second, what);
  return table;
}

}  // namespace

void Experience::doubt() {
  costs.doubt(true);
  history.doubt();
  ledger.doubt(Ledger::kGrant);
}

Json Experience::as_json() const {
  Json::Object tables, drafts, host, kinds;
  for (const auto& each : costs.tables) tables.emplace_back(std::to_string(each.first), table_json(each.second));
  for (const auto& each : costs.drafts)
    drafts.emplace_back(each.first, Json::Object{{"step", optional_json(each.second.step.value)},
                                                 {"read", optional_json(each.second.read.value)}});
  for (const auto& each : costs.host)
    if (each.second.value) host.emplace_back(each.first, *each.second.value);
  for (const auto& each : history.kinds) {
    const auto mine = ledger.kinds.find(each.first);
    kinds.emplace_back(each.first, kind_json(each.second, mine == ledger.kinds.end() ? Ledger() : mine->second));
  }
  Json found = Json::Object{{"tables", tables}, {"drafts", drafts}, {"host", host}, {"kinds", kinds}};
  found.set("plain", kind_json(history, ledger));
  return found;
}

Experience Experience::from_json(const Json& value) {
  Experience found;
  const std::string what = "experience";
  for (const auto& each : value.at("tables", what).object(what)) {
    const int bucket = number_of(each.first, 0, kContextBuckets - 1);
    found.costs.tables.emplace(bucket, table_of(each.second, what));
    found.costs.order.push_back(bucket);
  }
  for (const auto& each : value.at("drafts", what).object(what))
    found.costs.drafts.emplace(each.first, DraftCost(optional_amount(each.second.at("step", what), what),
                                                     optional_amount(each.second.at("read", what), what)));
  for (const auto& each : value.at("host", what).object(what))
    found.costs.host.emplace(each.first, Recent(amount(each.second, what), kSteady));
  read_kind(value.at("plain", what), &found.history, &found.ledger);
  for (const auto& each : value.at("kinds", what).object(what))
    read_kind(each.second, &found.history.kinds[each.first], &found.ledger.kinds[each.first]);
  return found;
}

}  // namespace edgedecode
