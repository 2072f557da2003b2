// A model's tokenizer: text to ids and back. The file is what export/native/text_file.py writes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../decoding/model.h"
#include "normal_form.h"
#include "rendered.h"
#include "splits.h"
#include "tables.h"

namespace edgedecode {

// Thread-safe once open. The tables stay in the mapped file.
class Tokenizer {
 public:
  // Throws manifest_error for a file that is missing, foreign or damaged.
  static std::unique_ptr<Tokenizer> open(const std::string& path);

  // The ids of a text. control: names of control tokens in it become these tokens; false: they stay text.
  // Throws input_error for text that is not UTF-8.
  Ids encode(std::string_view text, bool control) const;
  // The ids of a conversation: control tokens where the template wrote them, nowhere else.
  Ids encode(const Rendered& text) const;
  // The ids of a text without a template, with the tokens that the tokenizer puts around it.
  Ids prompt(std::string_view text) const;

  int size() const { return size_; }  // the largest id plus one
  bool special(int id) const { return flagged(id, kSpecial); }
  bool known(int id) const { return flagged(id, kKnown); }
  // What a token adds to a text after others, maybe a part of a character; empty for special and unknown ids.
  std::string bytes(int id) const;
  // The same, for special ids too.
  std::string own_bytes(int id) const;

 private:
  friend class TokenText;
  enum Flag : uint8_t {
    kKnown = 1,
    kSpecial = 2,
    kControl = 4,
    kTag = 8,     // a control token that the model's own words may spell
    kByte = 16,   // SentencePiece's <0xE2>
    kLeft = 32,   // an added token that takes the white space before it
    kRight = 64,  // or behind it
    kLate = 128,  // looked for behind the others
  };
  // When a space mark comes before a stretch: never, before the first, or each, that has none, or always.
  enum class Mark { kNever, kFirst, kEach, kAlways };
  struct Section {
    std::string_view text;
    size_t start, stop;
  };
  struct Found {
    size_t start, stop;
    int id;
  };

  explicit Tokenizer(const std::string& path);
  bool flagged(int id, Flag flag) const { return id >= 0 && id < size_ && (flags_[static_cast<size_t>(id)] & flag); }
  std::string_view part(const Table<uint32_t>& ends, const Table<char>& texts, size_t place) const;
  std::string_view spelled(uint32_t id) const { return part(text_ends_, texts_, id); }
  std::string_view added_text(size_t place) const;
  int vocabulary_id(std::string_view token) const;
  Ids encode(std::string_view text, const std::vector<Span>& messages) const;
  void section(const Section& all, bool late, const std::vector<Span>& messages, Ids& ids) const;
  Found next_added(const Section& in, bool late, const std::vector<Span>& messages) const;
  Found added_at(const Section& in, bool late, const std::vector<Span>& messages) const;
  bool allowed(const Found& found, const std::vector<Span>& messages) const;
  static const Span* overlapping(const std::vector<Span>& messages, size_t start, size_t stop);
  void stretch(const Section& in, const std::vector<Span>& messages, Ids& ids) const;
  void word(std::string_view word, bool guarded, Ids& ids) const;
  void pieces(std::string_view word, Ids& ids) const;
  const Pair* pair(uint32_t left, uint32_t right) const;

  Tables tables_;
  Splits splits_;
  NormalForm normal_form_;
  int size_ = 0;
  bool byte_level_ = true, whole_words_ = false, marked_ = false, composes_ = false;
  Mark mark_ = Mark::kNever;
  uint32_t stripped_ = 0;  // spaces that decoding strips from the start of a text
  Table<uint8_t> flags_;
  Table<char> texts_, added_texts_;
  Table<uint32_t> text_ends_, sorted_, bytes_, pair_starts_, added_, added_ends_, leading_, trailing_;
  Table<Pair> pairs_;
  uint32_t added_starts_[257];  // the first added token that begins with a byte
};

}  // namespace edgedecode
