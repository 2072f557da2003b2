// `edgedecode-check tries`: uses the C interface as an app would, with texts that may be damaged.
#include "check.h"

#include <fstream>
#include <iterator>

#include "../include/edgedecode.h"
#include "json.h"
#include "pack/budget.h"

namespace edgedecode {
namespace {

constexpr int kMostPieces = 4;

bool read(const std::string& path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  text->assign(std::istreambuf_iterator<char>(file), {});
  return static_cast<bool>(file);
}

// A line is a folder. Its file `options`, if there is one, opens it, else the pack before stays open; `session` and
// `request` are what is asked. The answer has the step that was the last, and its error.
int run(const std::vector<std::string>&, std::istream& in, std::ostream& out) {
  edgedecode_pack* pack = nullptr;
  for (std::string folder, text; std::getline(in, folder);) {
    const char* step = "open";
    std::string error;
    int pieces = 0;
    const auto failed = [&error] { error = edgedecode_last_error(); };
    const auto take = [](void* user, const char*, size_t) { return ++*static_cast<int*>(user) == kMostPieces ? 1 : 0; };
    if (read(folder + "/options", &text)) {
      edgedecode_close(pack);
      edgedecode_free(edgedecode_plan(folder.c_str(), text.c_str()));
      if (!(pack = edgedecode_open(folder.c_str(), text.c_str()))) failed();
    }
    if (pack != nullptr) {
      step = "session";
      read(folder + "/session", &text);
      edgedecode_session* session = edgedecode_session_open(pack, text.c_str());
      if (session == nullptr) {
        failed();
      } else {
        step = "generate";
        read(folder + "/request", &text);
        if (edgedecode_generate(session, text.c_str(), take, &pieces) < 0) failed();
        edgedecode_free(edgedecode_stats(session));
        edgedecode_session_close(session);
      }
    }
    out << Json(Json::Object{{"step", step}, {"error", error}, {"peak", peak_nbytes()}}).text() << std::endl;
  }
  int failed = 0;
  if (edgedecode_session* session = pack ? edgedecode_session_open(pack, "{}") : nullptr) {
    const auto thrown = [](void*, const char*, size_t) -> int { throw 1; };  // others must get the turn afterwards
    failed = edgedecode_generate(session, "{\"prompt\": \"a\"}", thrown, nullptr) != EDGEDECODE_FAILED;
    edgedecode_session_close(session);
  }
  edgedecode_close(pack);
  return failed;
}

const Registered registered("tries", run);

}  // namespace
}  // namespace edgedecode
