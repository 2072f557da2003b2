// Errors inside the library: a sentence as the command line prints it, and what the C interface returns for it.
#pragma once

#include <stdexcept>
#include <string>

#include "../include/edgedecode.h"

namespace edgedecode {

class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& sentence) : std::runtime_error(sentence), code(code) {}
  const int code;
};

inline const std::string& shown(const std::string& text) { return text; }
inline std::string shown(int64_t number) { return std::to_string(number); }

// The names of edgedecode/errors.py. A sentence is given in pieces: texts and whole numbers.
template <int Code, class... Pieces>
Error error_of(const Pieces&... pieces) {
  std::string sentence;
  (sentence.append(shown(pieces)), ...);
  return {Code, sentence};
}
template <class... P>
Error input_error(const P&... pieces) { return error_of<EDGEDECODE_BAD_INPUT>(pieces...); }
template <class... P>
Error manifest_error(const P&... pieces) { return error_of<EDGEDECODE_FAILED>(pieces...); }
template <class... P>
Error capability_error(const P&... pieces) { return error_of<EDGEDECODE_FAILED>(pieces...); }
template <class... P>
Error budget_exceeded(const P&... pieces) { return error_of<EDGEDECODE_OVER_BUDGET>(pieces...); }

// What a sentence repeats of a text: at most so many bytes, whole characters.
inline std::string start_of(const std::string& text, size_t most) {
  while (most > 0 && most < text.size() && (text[most] & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

// Of an option, a field or a drafter that nobody has; known: those that there are.
inline Error unknown_name(const std::string& kind, const std::string& name, const std::string& known) {
  return input_error("unknown " + kind + " " + start_of(name, 60) + ": " + known);
}

}  // namespace edgedecode
