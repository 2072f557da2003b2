// UTF-8, checked: which bytes make a character, and which characters are white space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edgedecode {

struct Utf8 {
  enum Kind { kCharacter, kInvalid, kPartial } kind;
  size_t length;  // of the character, of the longest part of one that it could have been, or of what there is
};

// What begins at `place`, as the Unicode standard counts replacement characters (3.9, U+FFFD substitution).
inline Utf8 utf8_at(std::string_view text, size_t place) {
  const auto byte = [&](size_t n) { return static_cast<uint8_t>(text[n]); };
  const uint8_t first = byte(place);
  if (first < 0x80) return {Utf8::kCharacter, 1};
  if (first < 0xc2 || first > 0xf4) return {Utf8::kInvalid, 1};
  const size_t more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  uint8_t least = first == 0xe0   ? 0xa0
                  : first == 0xf0 ? 0x90
                                  : 0x80,
          most = first == 0xed   ? 0x9f
                 : first == 0xf4 ? 0x8f
                                 : 0xbf;
  for (size_t n = 1; n <= more; ++n, least = 0x80, most = 0xbf) {
    if (place + n == text.size()) return {Utf8::kPartial, n};
    const bool surrogate = first == 0xed && n == 1 && byte(place + 1) >= 0xa0 && byte(place + 1) <= 0xbf;
    if (surrogate && place + 2 == text.size()) return {Utf8::kPartial, 2};  // Python's decoder waits for its third byte
    if (byte(place + n) < least || byte(place + n) > most) return {Utf8::kInvalid, n};
  }
  return {Utf8::kCharacter, more + 1};
}

// Where a text is not UTF-8; npos: nowhere.
inline size_t invalid_utf8(std::string_view text) {
  for (size_t place = 0; place < text.size();) {
    const Utf8 next = utf8_at(text, place);
    if (next.kind != Utf8::kCharacter) return place;
    place += next.length;
  }
  return std::string_view::npos;
}

// A code point of checked UTF-8 at `place`, which moves behind it.
inline uint32_t next_code_point(const char* text, size_t& place) {
  const auto first = static_cast<uint8_t>(text[place++]);
  if (first < 0x80) return first;
  const int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  uint32_t code = first & (0x3f >> more);
  for (int n = 0; n < more; ++n) code = code << 6 | (static_cast<uint8_t>(text[place++]) & 0x3f);
  return code;
}

inline void append_utf8(uint32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  text += static_cast<char>((0xf00 >> (more + 1) & 0xff) | code >> 6 * more);
  for (int n = more - 1; n >= 0; --n) text += static_cast<char>(0x80 | (code >> 6 * n & 0x3f));
}

// Whether a code point is white space (property White_Space; with `controls` also U+001C to U+001F, as in Python).
inline bool is_space(uint32_t code, bool controls) {
  if (code <= 0x20) return code == 0x20 || (code >= 9 && code <= 13) || (controls && code >= 28);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

// The end of the white space from `start` on, and the start of that before `stop`. text: checked UTF-8.
inline size_t spaces_stop(std::string_view text, size_t start, size_t stop, bool controls = false) {
  for (size_t place = start; place < stop; start = place)
    if (!is_space(next_code_point(text.data(), place), controls)) break;
  return start;
}

inline size_t spaces_start(std::string_view text, size_t start, size_t stop, bool controls = false) {
  while (stop > start) {
    size_t place = stop - 1;
    while (place > start && (static_cast<uint8_t>(text[place]) & 0xc0) == 0x80) --place;
    size_t after = place;
    if (!is_space(next_code_point(text.data(), after), controls)) break;
    stop = place;
  }
  return stop;
}

}  // namespace edgedecode
