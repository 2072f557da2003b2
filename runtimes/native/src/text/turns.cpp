#include "turns.h"

#include <ctime>
#include <string_view>

#include "../errors.h"
#include "utf8.h"

namespace edgedecode {
namespace {

constexpr char kWhat[] = "native.json: turns";
constexpr char kDate[] = "\xee\x80\x80";  // U+E000, around a date's format in a text of the template

const Json& member(const Json& turns, const char* name) { return turns.at(name, kWhat); }

// A text of the template, with today's date where it has one.
std::string dated(const std::string& text) {
  std::string found;
  const std::string mark = kDate;
  for (size_t place = 0;;) {
    const size_t start = text.find(mark, place),
                 stop = start == std::string::npos ? start : text.find(mark, start + mark.size());
    found += text.substr(place, start - place);
    if (stop == std::string::npos) return found;
    const std::time_t now = std::time(nullptr);
    std::tm local;
    localtime_r(&now, &local);
    char date[128];
    const std::string format = text.substr(start + mark.size(), stop - start - mark.size());
    found.append(date, std::strftime(date, sizeof(date), format.c_str(), &local));
    place = stop + mark.size();
  }
}

}  // namespace

Turns::Between Turns::between(const Json& turns, const char* name) {
  const Json& found = member(turns, name);
  return {member(found, "first").string(kWhat), member(found, "later").string(kWhat)};
}

Turns::Writing Turns::writing(const Json& turns, const char* role) {
  const Json& found = member(member(turns, "writing"), role);
  return {member(found, "left").string(kWhat), member(found, "right").boolean(kWhat),
          member(found, "early").boolean(kWhat), member(found, "thought_end").string(kWhat),
          member(found, "thought_strip").string(kWhat)};
}

Turns::Turns(const Json& turns) try
    : start_(member(turns, "start").string(kWhat)),
      before_system_(member(turns, "before_system").string(kWhat)),
      behind_system_(member(turns, "behind_system").string(kWhat)),
      before_last_system_(member(turns, "before_last_system").string(kWhat)),
      answer_(between(turns, "answer")),
      question_(between(turns, "question")),
      end_(between(turns, "end")),
      system_last_(member(turns, "system_last").boolean(kWhat)),
      system_(writing(turns, "system")),
      user_(writing(turns, "user")),
      user_behind_system_(writing(turns, "user_behind_system")),
      assistant_(writing(turns, "assistant")),
      latest_(writing(turns, "latest")) {
} catch (const Error& error) {
  throw manifest_error(error.what(), ": package the model again");
}

void Turns::add(const Writing& how, const Message& message, Rendered& text) {
  const std::string& content = message.content;
  if (const size_t wrong = invalid_utf8(content); wrong != std::string::npos)
    throw input_error("the content of a ", message.role, " message is not UTF-8 at byte ", wrong);
  size_t start = 0, stop = content.size();
  const auto begin = [&](const std::string& what) {
    if (what == "newlines") while (start < stop && content[start] == '\n') ++start;
    else if (what != "nothing") start = spaces_stop(content, start, stop, true);
  };
  const auto strip = [&] {
    begin(how.left);
    if (how.right) stop = spaces_start(content, start, stop, true);
  };
  if (how.early) strip();
  const std::string_view shown = std::string_view(content).substr(start, stop - start);
  const size_t thought = how.thought_end.empty() ? std::string::npos : shown.rfind(how.thought_end);
  if (thought != std::string::npos) {
    start += thought + how.thought_end.size();
    begin(how.thought_strip);
    if (how.thought_strip == "both") stop = spaces_start(content, start, stop, true);
  }
  if (!how.early) strip();
  text.add_message(content.substr(start, stop - start), message.role == "assistant");
}

Rendered Turns::render(const std::vector<Message>& messages) const {
  const bool system = !messages.empty() && messages[0].role == "system";
  const size_t first = system ? 1 : 0, count = messages.size();
  for (size_t n = first; n < count; ++n) {
    if (messages[n].role == ((n - first) % 2 ? "assistant" : "user")) continue;
    throw input_error("message ", n + 1, " is the ", messages[n].role,
                      "'s: after a system message user and assistant take turns");
  }
  if ((count - first) % 2 == 0) throw input_error("a conversation ends with the user's message");
  Rendered text;
  const size_t last = count - 1, system_place = system && system_last_ ? last : first;
  if (!system || system_place != 1) text.add(dated(start_));
  for (size_t n = first; n < count; ++n) {
    const bool begins = n < first + 2;
    if ((n - first) % 2) {
      text.add(begins ? answer_.first : answer_.later);
      add(n + 1 == last ? latest_ : assistant_, messages[n], text);
      if (!system || !system_last_ || n + 1 != last) text.add(begins ? question_.first : question_.later);
      continue;
    }
    const bool behind = system && n == system_place;
    if (behind) {
      text.add(dated(n == 1 ? before_system_ : before_last_system_));
      add(system_, messages[0], text);
      text.add(dated(behind_system_));
    }
    add(behind ? user_behind_system_ : user_, messages[n], text);
  }
  text.add(count == first + 1 ? end_.first : end_.later);
  return text;
}

}  // namespace edgedecode
