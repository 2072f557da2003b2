// The text of a conversation, with the places where messages stand in it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace edgedecode {

// Bytes of a message: no control token begins, ends or lies in them.
struct Span {
  size_t start, stop;
  bool own;  // the model's own words, which may spell tags such as <think>
};

struct Rendered {
  std::string text;
  std::vector<Span> messages;  // ascending, apart from each other

  void add(const std::string& template_text) { text += template_text; }
  void add_message(const std::string& content, bool own) {
    if (!content.empty()) messages.push_back({text.size(), text.size() + content.size(), own});
    text += content;
  }
  // The text from a place on.
  Rendered rest(size_t start) const {
    Rendered found{text.substr(start), {}};
    for (const Span& each : messages) {
      if (each.stop > start)
        found.messages.push_back({each.start > start ? each.start - start : 0, each.stop - start, each.own});
    }
    return found;
  }
};

}  // namespace edgedecode
