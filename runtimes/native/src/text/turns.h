// A chat template as turns: what export/bundles/native/turns.py found out, and checked, about the pack's template.
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

  // A conversation up to the assistant's header: an optional system message, then user and assistant in turn, the
  // last one the user's. Throws input_error for another order.
  Rendered render(const std::vector<Message>& messages) const;

 private:
  // How a role's content is written: stripped at its ends, and behind a thought.
  struct Writing {
    bool left = false, right = false;
    std::string thought_end, thought_strip;  // after the last `thought_end`, without these characters before it
  };
  static Writing writing(const Json& json, const std::string& what);
  static std::string written(const Writing& how, const std::string& content);

  // The template's texts before a message: without and with a system message.
  std::string start_, system_, user_after_system_, user_, assistant_first_, assistant_, end_first_, end_;
  Writing writings_[3];
  bool empty_system_ = false;
};

}  // namespace edgedecode
