// How a file of checks registers its subcommands.
#pragma once

#include <functional>
#include <istream>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace edgedecode {

using Check = std::function<int(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out)>;

std::map<std::string, Check>& checks();

struct Registered {
  Registered(const char* name, Check check) { checks()[name] = std::move(check); }
};

}  // namespace edgedecode
