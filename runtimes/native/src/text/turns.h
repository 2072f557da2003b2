// A chat template as turns: what export/native/turns.py found out, and checked, about the pack's template.
#pragma once

#include <string>
#include <vector>

#include "../json.h"
#include "rendered.h"

namespace edgedecode {

struct Message {
  std::string role, content;
};

class Turns {
 public:
  // What native.json has under "turns". Throws manifest_error.
  explicit Turns(const Json& turns);

  // A conversation up to the assistant's header: maybe a system message, then user and assistant in turn, the last one
  // the user's. Throws input_error for another order.
  Rendered render(const std::vector<Message>& messages) const;

 private:
  // How a role's content is written: stripped, and without a thought.
  struct Writing {
    std::string left;  // what is stripped of its start: "nothing", "newlines", "left" (white space)
    bool right = false;
    bool early = false;         // stripped before the thought is cut
    std::string thought_end;    // the content begins behind the last of these; "": with its start
    std::string thought_strip;  // of what is behind it: as `left`, and "both" for both ends
  };
  // The template's texts between messages: of the first turn, and of later ones.
  struct Between {
    std::string first, later;
  };
  static Between between(const Json& turns, const char* name);
  static Writing writing(const Json& turns, const char* role);
  static void add(const Writing& how, const Message& message, Rendered& text);

  std::string start_, before_system_, behind_system_, before_last_system_;
  Between answer_, question_, end_;
  bool system_last_ = false;  // the system message stands in the last turn
  Writing system_, user_, user_behind_system_, assistant_, latest_;
};

}  // namespace edgedecode
