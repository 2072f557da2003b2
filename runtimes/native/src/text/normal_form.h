// Unicode's normal form C, with the tables of the library that the model's tokenizer was made for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tables.h"

namespace edgedecode {

class NormalForm {
 public:
  explicit NormalForm(const Tables& tables);
  // UAX #15: decomposed, marks in canonical order, composed. text: checked UTF-8.
  std::string composed(std::string_view text) const;

 private:
  struct Decomposed {
    uint32_t code, start, count;  // in `parts_`
  };
  struct Composed {
    uint32_t first, second, whole;
  };

  void decompose(uint32_t code, std::vector<uint32_t>& out) const;
  uint32_t whole(uint32_t first, uint32_t second) const;  // 0: none
  uint8_t order(uint32_t code) const { return forms_.of(code) & 63; }  // the canonical one; 0: a starter

  Property forms_;
  Table<Decomposed> decomposed_;
  Table<uint32_t> parts_;
  Table<Composed> composed_;
};

}  // namespace edgedecode
