// White space as Unicode has it: what added tokens and templates strip.
#pragma once

#include <cstddef>
#include <string_view>

namespace edgedecode {

// Whether a code point is white space (property White_Space; with `controls` also U+001C to U+001F, as in Python).
bool is_space(unsigned code, bool controls);

// The end of the white space from `start` on, and the start of that before `stop`. text: checked UTF-8.
size_t spaces_stop(std::string_view text, size_t start, size_t stop, bool controls = false);
size_t spaces_start(std::string_view text, size_t start, size_t stop, bool controls = false);

}  // namespace edgedecode
