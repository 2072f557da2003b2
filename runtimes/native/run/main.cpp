// edgedecode-run: the library on a command line, for boards, adb and tests. It uses the C interface alone.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../include/edgedecode.h"
#include "../src/errors.h"
#include "../src/json.h"

namespace {

using edgedecode::Json;

constexpr const char* kUsage =
    "usage: edgedecode-run FOLDER [PROMPT] [--json | --plan | --info | --verify | --replay FILE] [--NAME VALUE]...\n"
    "A NAME is one that edgedecode.h has for opening (engine, memory, context, threads, drafts, experience), for a\n"
    "conversation (system, drafter, draft_max, seed, temperature, top_p, ...) or for an answer (max_tokens, stop,\n"
    "raw true: a prompt without template). FILE has lines of {\"session\", \"request\", \"expected\": ids, \"stats\":\n"
    "counts of rounds and drafts by their names in --json}.\n";

struct Arguments {
  std::string folder, prompt, mode, replay;
  bool has_prompt = false, raw = false;
  Json open = Json::Object{}, session = Json::Object{}, request = Json::Object{};
};

// JSON, or else a text.
Json value_of(const std::string& text) {
  try {
    return Json::parse(text, "value");
  } catch (const edgedecode::Error&) {
  }
  return Json(text);
}

bool read(int count, char** given, Arguments* found) {
  static const std::set<std::string> kOpen = {"engine", "memory", "context", "threads", "drafts", "experience"};
  static const std::set<std::string> kTexts = {"system", "adapter", "drafter", "engine", "experience"};
  static const std::set<std::string> kModes = {"--json", "--plan", "--info", "--verify"};
  Json::Array stops;
  for (int i = 1; i < count; ++i) {
    const std::string word = given[i];
    if (!found->mode.empty() && (kModes.count(word) || word == "--replay")) return false;
    if (kModes.count(word)) {
      found->mode = word;
    } else if (word.compare(0, 2, "--") == 0) {
      if (++i == count) return false;
      std::string name = word.substr(2);
      for (char& letter : name) letter = letter == '-' ? '_' : letter;
      if (name == "replay") found->mode = word, found->replay = given[i];
      else if (name == "raw") found->raw = value_of(given[i]).boolean("raw");
      else if (name == "stop") stops.push_back(given[i]);
      else if (name == "max_tokens") found->request.set(name, value_of(given[i]));
      else (kOpen.count(name) ? found->open : found->session)
          .set(name, kTexts.count(name) ? Json(given[i]) : value_of(given[i]));
    } else if (found->folder.empty()) {
      found->folder = word;
    } else {
      found->prompt += (found->has_prompt ? " " : "") + word;
      found->has_prompt = true;
    }
  }
  if (!stops.empty()) found->request.set("stop", stops);
  if (found->mode == "--verify") found->open.set("verify", true);
  // What does not answer takes none of an answer's options.
  const bool asks = found->mode.empty() || found->mode == "--json";
  const bool given_any =
      found->has_prompt || found->raw || found->session.text() != "{}" || found->request.text() != "{}";
  return !found->folder.empty() && (asks || !given_any);
}

int fail(int code = EDGEDECODE_FAILED) {
  std::fprintf(stderr, "%s\n", edgedecode_last_error());
  return code == EDGEDECODE_BAD_INPUT ? 2 : 1;
}

int print(char* text) {
  if (!text) return fail();
  std::printf("%s\n", text);
  edgedecode_free(text);
  return 0;
}

Json stats_of(edgedecode_session* session) {
  char* text = edgedecode_stats(session);
  const Json found = Json::parse(text ? text : "{}", "statistics");
  edgedecode_free(text);
  return found;
}

using SessionHandle = std::unique_ptr<edgedecode_session, void (*)(edgedecode_session*)>;

int answer(edgedecode_pack* pack, Arguments& arguments) {
  const SessionHandle session(edgedecode_session_open(pack, arguments.session.text().c_str()),
                              edgedecode_session_close);
  if (!session) return fail();
  if (!arguments.has_prompt) std::getline(std::cin, arguments.prompt, '\0');
  arguments.request.set(arguments.raw ? "prompt" : "message", arguments.prompt);
  std::string whole;
  const bool json = arguments.mode == "--json";
  struct To {
    std::string* text;
    bool print;
  } to{&whole, !json};
  const auto take = [](void* user, const char* text, size_t size) {
    const auto* given = static_cast<To*>(user);
    given->text->append(text, size);
    if (given->print) std::fwrite(text, 1, size, stdout), std::fflush(stdout);
    return 0;
  };
  const int32_t count = edgedecode_generate(session.get(), arguments.request.text().c_str(), take, &to);
  if (count < 0) return fail(count);
  if (!json) return std::printf("\n"), 0;
  Json found = stats_of(session.get());
  found.set("text", whole);
  std::printf("%s\n", found.text().c_str());
  return 0;
}

// The first thing in which an answer differs from the recorded one; "": nothing.
std::string difference(const Json& found, const Json& recorded) {
  const auto compared = [](const Json& is, const Json& was, const std::string& name) {
    return is.text() == was.text() ? "" : name + " " + is.text() + " instead of " + was.text();
  };
  std::string said = compared(found.at("tokens", "statistics"), recorded.at("expected", "a record"), "ids");
  if (const Json* counts = recorded.find("stats"))
    for (const auto& each : counts->object("stats"))
      if (said.empty()) said = compared(found.at("stats", "statistics").at(each.first, "stats"), each.second, each.first);
  return said;
}

// Answers recorded requests, each in a conversation of its own; ids and counts must be the recorded ones.
int replay(edgedecode_pack* pack, const Arguments& arguments) {
  std::ifstream file(arguments.replay);
  if (!file) return std::fprintf(stderr, "%s cannot be read\n", arguments.replay.c_str()), 1;
  int total = 0, equal = 0;
  for (std::string line; std::getline(file, line); ++total) {
    const Json recorded = Json::parse(line, arguments.replay);
    const Json* options = recorded.find("session");
    const SessionHandle session(edgedecode_session_open(pack, options ? options->text().c_str() : "{}"),
                                edgedecode_session_close);
    if (!session) return fail();
    const int32_t count =
        edgedecode_generate(session.get(), recorded.at("request", "a record").text().c_str(), nullptr, nullptr);
    if (count < 0) return fail(count);
    const std::string said = difference(stats_of(session.get()), recorded);
    if (said.empty()) ++equal;
    else std::fprintf(stderr, "line %d: %s\n", total + 1, said.c_str());
  }
  std::printf("{\"answers\": %d, \"equal\": %d}\n", total, equal);
  return equal == total ? 0 : 1;
}

int run(Arguments& arguments) {
  if (arguments.mode == "--plan")
    return print(edgedecode_plan(arguments.folder.c_str(), arguments.open.text().c_str()));
  const std::unique_ptr<edgedecode_pack, void (*)(edgedecode_pack*)> pack(
      edgedecode_open(arguments.folder.c_str(), arguments.open.text().c_str()), edgedecode_close);
  if (!pack) return fail();
  if (arguments.mode == "--info" || arguments.mode == "--verify") return print(edgedecode_info(pack.get()));
  return arguments.mode == "--replay" ? replay(pack.get(), arguments) : answer(pack.get(), arguments);
}

}  // namespace

int main(int count, char** given) {
  try {
    Arguments arguments;
    if (read(count, given, &arguments)) return run(arguments);
    std::fputs(kUsage, stderr);
    return 2;
  } catch (const edgedecode::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), error.code == EDGEDECODE_BAD_INPUT ? 2 : 1;
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
