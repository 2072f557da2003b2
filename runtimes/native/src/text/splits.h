// Pre-tokenizers: regular expressions of tokenizer.json as programs over classes of characters.
#pragma once

#include <functional>
#include <vector>

#include "tables.h"

namespace edgedecode {

// Characters as the programs see them.
struct Characters {
  std::vector<uint8_t> classes;
  std::vector<uint32_t> starts;  // where each begins in the text, and the text's end
};

class Splits {
 public:
  explicit Splits(const Tables& tables);
  bool empty() const { return steps_.count == 0; }
  Characters read(std::string_view text) const;
  // Calls `take` with the bounds of each word, in order.
  void words(const Characters& text, const std::function<void(size_t, size_t)>& take) const {
    step(0, text, 0, text.classes.size(), take);
  }

 private:
  // An expression in order of precedence, without loops: jumps only go forward.
  enum Kind : uint32_t { kRun, kEither, kJump, kAhead, kNotAhead, kMatch };
  struct Instruction {
    uint32_t kind;   // kRun may have kWhole added: what it took it keeps
    uint32_t mask;   // the classes that it takes, an index
    uint32_t least;  // kRun: least and most characters, 0: any number; kEither: the second way; kJump: where to
    uint32_t most;
  };
  struct Step {
    uint32_t start;  // first instruction
    uint32_t keeps;  // whether text between matches makes words
  };
  struct Way {
    uint32_t at;
    size_t least, most;  // places that are left to try, the last one first
  };
  static constexpr uint32_t kWhole = 16;

  size_t match(uint32_t at, const uint8_t* classes, size_t start, size_t stop, std::vector<Way>& ways) const;
  void step(size_t number, const Characters& text, size_t start, size_t stop,
            const std::function<void(size_t, size_t)>& take) const;

  Property classes_;
  Table<Step> steps_;
  Table<Instruction> code_;
  Table<uint64_t> masks_;
};

}  // namespace edgedecode
