#include "spaces.h"

#include "splits.h"

namespace edgedecode {

bool is_space(unsigned code, bool controls) {
  if (code <= 0x20) return code == 0x20 || (code >= 9 && code <= 13) || (controls && code >= 28);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

size_t spaces_stop(std::string_view text, size_t start, size_t stop, bool controls) {
  for (size_t place = start; place < stop; start = place) {
    if (!is_space(next_code_point(text.data(), place), controls)) break;
  }
  return start;
}

size_t spaces_start(std::string_view text, size_t start, size_t stop, bool controls) {
  while (stop > start) {
    size_t place = stop - 1;
    while (place > start && (static_cast<unsigned char>(text[place]) & 0xc0) == 0x80) --place;
    size_t after = place;
    if (!is_space(next_code_point(text.data(), after), controls)) break;
    stop = place;
  }
  return stop;
}

}  // namespace edgedecode
