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

// The names of edgedecode/errors.py.
inline Error input_error(const std::string& sentence) { return {EDGEDECODE_BAD_INPUT, sentence}; }
inline Error manifest_error(const std::string& sentence) { return {EDGEDECODE_FAILED, sentence}; }
inline Error capability_error(const std::string& sentence) { return {EDGEDECODE_FAILED, sentence}; }
inline Error budget_exceeded(const std::string& sentence) { return {EDGEDECODE_OVER_BUDGET, sentence}; }

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
