#include "token_text.h"

#include "utf8.h"

namespace edgedecode {
namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";

}  // namespace

std::string TokenText::push(const Ids& ids) {
  std::string text;
  for (int32_t id : ids) {
    if (!tokenizer_->known(id) || (tokenizer_->special(id) && !special_)) continue;
    const std::string data = tokenizer_->own_bytes(id);
    if (tokenizer_->byte_level_) {
      text += bytes(data);
    } else if (tokenizer_->flagged(id, Tokenizer::kByte)) {
      run_ += data;
    } else {
      text += run();
      text += stripped(data);
    }
  }
  return text;
}

std::string TokenText::flush(bool* cut) {
  bool partial = !partial_.empty();
  for (size_t place = 0; place < run_.size();) {
    const Utf8 next = utf8_at(run_, place);
    if (next.kind == Utf8::kPartial) run_.resize(place), partial = true;
    place += next.length;
  }
  if (cut) *cut = partial;
  const std::string text = run();
  partial_.clear();
  spaces_ = 0;
  started_ = false;
  return text;
}

// The characters that more bytes complete; invalid ones become replacement characters.
std::string TokenText::bytes(std::string_view data) {
  partial_ += data;
  std::string text;
  for (size_t place = 0;;) {
    if (place == partial_.size()) {
      partial_.clear();
      return text;
    }
    const Utf8 next = utf8_at(partial_, place);
    if (next.kind == Utf8::kPartial) {
      partial_.erase(0, place);
      return text;
    }
    text += next.kind == Utf8::kCharacter ? partial_.substr(place, next.length) : kReplacement;
    place += next.length;
  }
}

// The text of the byte tokens so far: one invalid byte makes all of them replacement characters.
std::string TokenText::run() {
  std::string text = std::move(run_);
  run_.clear();
  if (invalid_utf8(text) != std::string::npos) {
    const size_t count = text.size();
    text.clear();
    for (size_t n = 0; n < count; ++n) text += kReplacement;
  }
  return stripped(std::move(text));
}

// A text without the spaces that decoding strips from the start of the whole.
std::string TokenText::stripped(std::string text) {
  size_t spaces = 0;
  while (!started_ && spaces < text.size() && text[spaces] == ' ' && spaces_ < tokenizer_->stripped_)
    ++spaces, ++spaces_;
  started_ |= spaces < text.size();
  return text.substr(spaces);
}

}  // namespace edgedecode
