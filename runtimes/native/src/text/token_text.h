// A stream of ids as a stream of text, as in edgedecode/text/token_text.py.
#pragma once

#include <string>

#include "tokenizer.h"

namespace edgedecode {

// Text comes in complete characters and is never taken back. Special ids add nothing, unless they are asked for.
class TokenText {
 public:
  explicit TokenText(const Tokenizer& tokenizer, bool special = false) : tokenizer_(&tokenizer), special_(special) {}
  // The text that these ids complete.
  std::string push(const Ids& ids);
  // The rest, without an incomplete character at its end; starts a new text. cut: whether there was one.
  std::string flush(bool* cut = nullptr);

 private:
  std::string bytes(std::string_view data);
  std::string run();
  std::string stripped(std::string text);

  const Tokenizer* tokenizer_;
  const bool special_;
  std::string partial_;  // bytes that begin a character
  std::string run_;      // byte tokens of SentencePiece: one invalid byte changes them all
  uint32_t spaces_ = 0;  // stripped so far
  bool started_ = false;
};

}  // namespace edgedecode
