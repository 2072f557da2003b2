#include "tokenizer.h"

#include <algorithm>
#include <queue>

#include "utf8.h"

namespace edgedecode {
namespace {

constexpr char kSpaceMark[] = "\xe2\x96\x81";  // U+2581, SentencePiece's space
constexpr uint32_t kNone = 0xffffffff;
constexpr uint32_t kMostIds = 1 << 24;

// The facts at the start of the file, in the order of text_file.py.
enum Fact { kSize, kByteLevel, kWholeWords, kStripped, kMarked, kMarkWhen, kComposes, kFactCount };

// A token of a word that is being joined, in a list of its neighbours.
struct Symbol {
  uint32_t id;
  int32_t before, after;  // -1: none
  bool alive;
};

// A pair that may be joined: the one of the lowest rank, then the first, comes next.
struct Join {
  uint32_t rank, id;
  int32_t place;
  bool operator<(const Join& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
};

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string found;
  for (size_t place = 0;;) {
    const size_t next = text.find(from, place);
    found += text.substr(place, next - place);
    if (next == std::string_view::npos) return found;
    found += to;
    place = next + from.size();
  }
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::open(const std::string& path) {
  return std::unique_ptr<Tokenizer>(new Tokenizer(path));
}

Tokenizer::Tokenizer(const std::string& path) : tables_(path), splits_(tables_), normal_form_(tables_) {
  const auto facts = tables_.table<uint32_t>(Tables::kFacts);
  if (facts.count != kFactCount || facts[kSize] > kMostIds || facts[kMarkWhen] > 3) tables_.damaged();
  size_ = static_cast<int>(facts[kSize]);
  byte_level_ = facts[kByteLevel];
  whole_words_ = facts[kWholeWords];
  stripped_ = facts[kStripped];
  marked_ = facts[kMarked];
  mark_ = static_cast<Mark>(facts[kMarkWhen]);
  composes_ = facts[kComposes];
  flags_ = tables_.table<uint8_t>(Tables::kFlags);
  text_ends_ = tables_.table<uint32_t>(Tables::kTextEnds);
  texts_ = tables_.table<char>(Tables::kTexts);
  sorted_ = tables_.table<uint32_t>(Tables::kSorted);
  bytes_ = tables_.table<uint32_t>(Tables::kBytes);
  pair_starts_ = tables_.table<uint32_t>(Tables::kPairStarts);
  pairs_ = tables_.table<Pair>(Tables::kPairs);
  added_ = tables_.table<uint32_t>(Tables::kAdded);
  added_ends_ = tables_.table<uint32_t>(Tables::kAddedEnds);
  added_texts_ = tables_.table<char>(Tables::kAddedTexts);
  leading_ = tables_.table<uint32_t>(Tables::kLeading);
  trailing_ = tables_.table<uint32_t>(Tables::kTrailing);
  const size_t size = static_cast<size_t>(size_);
  if (flags_.count != size || text_ends_.count != size + 1 || pair_starts_.count != size + 1 || bytes_.count != 256 ||
      added_ends_.count != added_.count + 1)
    tables_.damaged();
  for (const auto& ids : {added_, leading_, trailing_})
    for (uint32_t id : ids)
      if (id >= size) tables_.damaged();
  size_t place = 0;
  for (int byte = 0; byte < 256; ++byte) {
    added_starts_[byte] = static_cast<uint32_t>(place);
    while (place < added_.count && static_cast<uint8_t>(added_text(place)[0]) == byte) ++place;
  }
  added_starts_[256] = static_cast<uint32_t>(place);
  if (place != added_.count) tables_.damaged();
}

std::string_view Tokenizer::part(const Table<uint32_t>& ends, const Table<char>& texts, size_t place) const {
  const uint32_t start = ends.at(place), stop = ends.at(place + 1);
  if (start > stop || stop > texts.count) tables_.damaged();
  return {texts.data + start, stop - start};
}

std::string_view Tokenizer::added_text(size_t place) const {
  const std::string_view found = part(added_ends_, added_texts_, place);
  if (found.empty()) tables_.damaged();
  return found;
}

int Tokenizer::vocabulary_id(std::string_view token) const {
  const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), token,
                                      [this](uint32_t id, std::string_view wanted) { return spelled(id) < wanted; });
  return found != sorted_.end() && spelled(*found) == token ? static_cast<int>(*found) : -1;
}

std::string Tokenizer::own_bytes(int id) const {
  if (!known(id)) return "";
  const std::string_view text = spelled(static_cast<uint32_t>(id));
  if (byte_level_) return std::string(text);
  if (!flagged(id, kByte)) return replaced(text, kSpaceMark, " ");
  if (text.size() != 6) tables_.damaged();
  return {static_cast<char>(std::strtol(std::string(text.substr(3, 2)).c_str(), nullptr, 16))};
}

std::string Tokenizer::bytes(int id) const { return special(id) ? "" : own_bytes(id); }

Ids Tokenizer::encode(std::string_view text, bool control) const {
  const std::vector<Span> all{{0, text.size(), false}};
  return encode(text, control ? std::vector<Span>() : all);
}

Ids Tokenizer::encode(const Rendered& text) const { return encode(text.text, text.messages); }

Ids Tokenizer::prompt(std::string_view text) const {
  Ids ids(leading_.begin(), leading_.end());
  const Ids found = encode(text, true);
  ids.insert(ids.end(), found.begin(), found.end());
  ids.insert(ids.end(), trailing_.begin(), trailing_.end());
  return ids;
}

Ids Tokenizer::encode(std::string_view text, const std::vector<Span>& messages) const {
  if (text.size() >= kNone)
    throw input_error("a text has ", text.size(), " bytes: the limit is 4294967294");
  if (const size_t wrong = invalid_utf8(text); wrong != std::string_view::npos)
    throw input_error("cannot encode this text: it is not UTF-8 at byte ", wrong);
  Ids ids;
  section({text, 0, text.size()}, false, messages, ids);
  return ids;
}

// Added tokens that are looked for in normalized text (late) come after the others have been found.
void Tokenizer::section(const Section& all, bool late, const std::vector<Span>& messages, Ids& ids) const {
  for (size_t place = all.start; place < all.stop;) {
    const Found found = next_added({all.text, place, all.stop}, late, messages);
    if (found.start > place) {
      const Section before{all.text, place, found.start};
      if (late) stretch(before, messages, ids);
      else section(before, true, messages, ids);
    }
    if (found.id >= 0) ids.push_back(found.id);
    place = found.stop;
  }
}

// The first added token of a text, of those at one place the longest; with id -1 the text's end.
Tokenizer::Found Tokenizer::next_added(const Section& in, bool late, const std::vector<Span>& messages) const {
  for (size_t place = in.start; place < in.stop; ++place) {
    const auto first = static_cast<uint8_t>(in.text[place]);
    if (added_starts_[first] == added_starts_[first + 1]) continue;
    Found found = added_at({in.text, place, in.stop}, late, messages);
    if (found.id < 0) continue;
    if (flagged(found.id, kLeft)) found.start = spaces_start(in.text, in.start, found.start);
    if (flagged(found.id, kRight)) found.stop = spaces_stop(in.text, found.stop, in.stop);
    return found;
  }
  return {in.stop, in.stop, -1};
}

Tokenizer::Found Tokenizer::added_at(const Section& in, bool late, const std::vector<Span>& messages) const {
  const auto first = static_cast<uint8_t>(in.text[in.start]);
  size_t low = added_starts_[first], high = added_starts_[first + 1];
  Found best{in.start, in.start, -1};
  for (size_t length = 1; low < high; ++length) {  // those from low to high begin with `length` bytes of the text
    if (added_text(low).size() == length) {
      const Found found{in.start, in.start + length, static_cast<int>(added_[low])};
      if (flagged(found.id, kLate) == late && allowed(found, messages)) best = found;
      ++low;
    }
    if (in.start + length == in.stop) break;
    const auto bound = [&](size_t from, int least) {  // the first from there on whose next byte is `least` or more
      for (size_t stop = high; from < stop;) {
        const size_t middle = (from + stop) / 2;
        const std::string_view text = added_text(middle);
        if (text.size() <= length || static_cast<uint8_t>(text[length]) < least) from = middle + 1;
        else stop = middle;
      }
      return from;
    };
    const int next = static_cast<uint8_t>(in.text[in.start + length]);
    low = bound(low, next);
    high = bound(low, next + 1);
  }
  return best;
}

// Whether an added token may be here: a control token not in a message, a tag in the model's own words too.
bool Tokenizer::allowed(const Found& found, const std::vector<Span>& messages) const {
  if (!flagged(found.id, kControl)) return true;
  const Span* span = overlapping(messages, found.start, found.stop);
  return span == nullptr || (span->own && flagged(found.id, kTag));
}

const Span* Tokenizer::overlapping(const std::vector<Span>& messages, size_t start, size_t stop) {
  const auto found = std::upper_bound(messages.begin(), messages.end(), start,
                                      [](size_t place, const Span& each) { return place < each.stop; });
  return found != messages.end() && found->start < stop ? &*found : nullptr;
}

// Text without added tokens.
void Tokenizer::stretch(const Section& in, const std::vector<Span>& messages, Ids& ids) const {
  const bool guarded = overlapping(messages, in.start, in.stop) != nullptr;
  std::string text(in.text.substr(in.start, in.stop - in.start));
  if (composes_) text = normal_form_.composed(text);
  if (marked_) {
    text = replaced(text, " ", kSpaceMark);
    const bool begins = text.compare(0, sizeof(kSpaceMark) - 1, kSpaceMark) == 0;
    const bool wanted =
        mark_ == Mark::kAlways || (!begins && (mark_ == Mark::kEach || (mark_ == Mark::kFirst && in.start == 0)));
    if (wanted) text.insert(0, kSpaceMark);
  }
  if (splits_.empty()) return word(text, guarded, ids);
  splits_.words(splits_.read(text), [&](size_t start, size_t stop) {
    word(std::string_view(text).substr(start, stop - start), guarded, ids);
  });
}

// guarded: a word that the model's own tokens make a control token of is cut behind its first character.
void Tokenizer::word(std::string_view word, bool guarded, Ids& ids) const {
  while (!word.empty()) {
    Ids found;
    pieces(word, found);
    size_t cut = word.size();
    for (size_t n = 0; guarded && n < found.size() && cut == word.size(); ++n) {
      if (!flagged(found[n], kControl)) continue;
      const std::string_view text = spelled(static_cast<uint32_t>(found[n]));
      const size_t character = byte_level_ || text.empty() ? 1 : utf8_at(text, 0).length;
      const size_t place = text.size() > character ? word.find(text) : std::string_view::npos;
      if (place != std::string_view::npos) cut = place + character;
    }
    if (cut == word.size()) {
      ids.insert(ids.end(), found.begin(), found.end());
      return;
    }
    this->word(word.substr(0, cut), guarded, ids);
    word.remove_prefix(cut);
  }
}

const Pair* Tokenizer::pair(uint32_t left, uint32_t right) const {
  const uint32_t start = pair_starts_.at(left), stop = pair_starts_.at(size_t{left} + 1);
  if (start > stop || stop > pairs_.count) tables_.damaged();
  const auto found = std::lower_bound(pairs_.data + start, pairs_.data + stop, right,
                                      [](const Pair& each, uint32_t wanted) { return each.right < wanted; });
  return found != pairs_.data + stop && found->right == right ? found : nullptr;
}

// Byte pair encoding: pairs of neighbours become one token, those of the lowest rank first (1508.07909).
void Tokenizer::pieces(std::string_view word, Ids& ids) const {
  if (const int whole = whole_words_ ? vocabulary_id(word) : -1; whole >= 0) return ids.push_back(whole);
  std::vector<Symbol> symbols;
  const auto add = [&](uint32_t id) {
    if (id == kNone) return;  // a byte that the vocabulary lacks
    if (id >= static_cast<uint32_t>(size_)) tables_.damaged();
    const auto place = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, place - 1, place + 1, true});
  };
  for (size_t place = 0; place < word.size();) {
    const size_t length = byte_level_ ? 1 : utf8_at(word, place).length;
    const int known = byte_level_ ? -1 : vocabulary_id(word.substr(place, length));
    if (known >= 0) add(static_cast<uint32_t>(known));
    else for (size_t n = 0; n < length; ++n) add(bytes_[static_cast<uint8_t>(word[place + n])]);
    place += length;
  }
  if (symbols.empty()) return;
  symbols.back().after = -1;
  std::priority_queue<Join> joins;
  const auto offer = [&](int32_t place) {
    if (place < 0 || symbols[place].after < 0) return;
    if (const Pair* found = pair(symbols[place].id, symbols[symbols[place].after].id))
      joins.push({found->rank, found->id, place});
  };
  for (size_t place = 0; place + 1 < symbols.size(); ++place) offer(static_cast<int32_t>(place));
  while (!joins.empty()) {
    const Join join = joins.top();
    joins.pop();
    Symbol& left = symbols[join.place];
    if (!left.alive || left.after < 0) continue;
    Symbol& right = symbols[left.after];
    const Pair* found = pair(left.id, right.id);
    if (found == nullptr || found->id != join.id) continue;  // a neighbour was joined meanwhile
    if (join.id >= static_cast<uint32_t>(size_)) tables_.damaged();
    left.id = join.id;
    right.alive = false;
    left.after = right.after;
    if (left.after >= 0) symbols[left.after].before = join.place;
    offer(left.before);
    offer(join.place);
  }
  for (const Symbol& each : symbols)
    if (each.alive) ids.push_back(static_cast<int32_t>(each.id));
}

}  // namespace edgedecode
