// What the tests run: one subcommand a part of the library, a line of JSON in, a line of JSON out.
#include "check.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <string>

namespace edgedecode {

std::map<std::string, Check>& checks() {
  static std::map<std::string, Check> known;
  return known;
}

}  // namespace edgedecode

int main(int count, char** arguments) {
  auto& known = edgedecode::checks();
  const auto found = count < 2 ? known.end() : known.find(arguments[1]);
  if (found == known.end()) {
    std::fprintf(stderr, "usage: edgedecode-check NAME [ARGUMENTS]; names:");
    for (const auto& each : known) std::fprintf(stderr, " %s", each.first.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  try {
    return found->second({arguments + 2, arguments + count}, std::cin, std::cout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
