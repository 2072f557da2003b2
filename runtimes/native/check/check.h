// How a file of checks registers its subcommands.
#pragma once

#include <functional>
#include <istream>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "decoding/model.h"
#include "json.h"

namespace edgedecode {

using Check = std::function<int(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out)>;

std::map<std::string, Check>& checks();

struct Registered {
  Registered(const char* name, Check check) { checks()[name] = std::move(check); }
};

// Answers each line of JSON with one.
template <class Answer>
int each_line(std::istream& in, std::ostream& out, const Answer& answer) {
  for (std::string line; std::getline(in, line);) out << Json(answer(Json::parse(line, "line"))).text() << std::endl;
  return 0;
}

inline int whole(const Json& value, const char* name) { return static_cast<int>(value.at(name, "line").integer(name)); }

inline Ids ids_of(const Json& list) {
  Ids found;
  for (const Json& each : list.array("ids")) found.push_back(static_cast<int32_t>(each.integer("id")));
  return found;
}

template <class Values>
Json list(const Values& values) {
  Json::Array found;
  for (auto each : values) found.push_back(static_cast<int64_t>(each));
  return found;
}

}  // namespace edgedecode
