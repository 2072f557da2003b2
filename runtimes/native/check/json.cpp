// `edgedecode-check json`: reads each line as JSON, writes it again, or what is wrong.
#include "json.h"

#include "check.h"
#include "errors.h"

namespace edgedecode {
namespace {

int run(const std::vector<std::string>&, std::istream& in, std::ostream& out) {
  std::string line;
  while (std::getline(in, line)) {
    try {
      out << Json::parse(line, "line").text() << "\n";
    } catch (const Error& error) {
      out << "error: " << error.what() << "\n";
    }
  }
  return 0;
}

const Registered registered("json", run);

}  // namespace
}  // namespace edgedecode
