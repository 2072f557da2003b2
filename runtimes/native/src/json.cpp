#include "json.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "errors.h"
#include "text/utf8.h"

namespace edgedecode {
namespace {

constexpr const char kWhole[] = "a whole number";
constexpr int kMostDepth = 64;
constexpr size_t kMostValues = 1 << 20;  // each takes about 100 bytes

// Numbers are read and written with a point, whatever the app has told the C library.
double to_double(const char* text) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(text, nullptr, plain);
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& subject) : text_(text), subject_(subject) {}

  Json document() {
    at_ = std::min(invalid_utf8(text_), text_.size());
    if (at_ < text_.size()) fail("bytes that are not UTF-8");
    at_ = 0;
    Json found = value(0);
    if (!ends()) fail("more text after the end");
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw input_error(subject_, " is not valid JSON, at character ", at_ + 1, ": ", what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool digit() const { return peek() >= '0' && peek() <= '9'; }
  bool take(char wanted) {
    const bool found = at_ < text_.size() && text_[at_] == wanted;
    at_ += found;
    return found;
  }
  // Behind white space.
  bool ends() {
    at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size());
    return at_ == text_.size();
  }
  bool next(char wanted) { return !ends() && take(wanted); }

  Json value(int depth) {
    if (depth > kMostDepth) fail("more than " + std::to_string(kMostDepth) + " levels");
    if (++values_ > kMostValues) fail("more than " + std::to_string(kMostValues) + " values");
    if (next('{')) return object(depth);
    if (take('[')) return array(depth);
    if (take('"')) return string();
    static const std::pair<const char*, Json> words[] = {{"true", true}, {"false", false}, {"null", Json()}};
    for (const auto& word : words)
      if (text_.compare(at_, strlen(word.first), word.first) == 0) return at_ += strlen(word.first), word.second;
    return number();
  }

  Json object(int depth) {
    Json::Object members;
    if (next('}')) return members;
    do {
      if (!next('"')) fail("a key in quotation marks is missing");
      std::string key = string();
      if (!next(':')) fail("a colon is missing");
      members.emplace_back(std::move(key), value(depth + 1));
    } while (next(','));
    if (!take('}')) fail("a comma or } is missing");
    std::vector<std::string> keys;
    for (const auto& member : members) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) fail("the key " + Json(twice->substr(0, 60)).text() + " comes twice");
    return members;
  }

  Json array(int depth) {
    Json::Array items;
    if (next(']')) return items;
    do items.push_back(value(depth + 1));
    while (next(','));
    if (!take(']')) fail("a comma or ] is missing");
    return items;
  }

  void digits() {
    if (!digit()) fail("a digit is missing");
    while (digit()) ++at_;
  }

  Json number() {
    const size_t start = at_;
    const bool negative = take('-');
    if (!digit()) fail(at_ >= text_.size() ? "it ends too early" : "a value is missing");
    if (!take('0')) digits();
    bool whole = true;
    if (take('.')) whole = false, digits();
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      digits();
    }
    const std::string literal = text_.substr(start, at_ - start);
    errno = 0;
    const uint64_t magnitude = whole ? strtoull(literal.c_str() + negative, nullptr, 10) : 0;
    if (whole && errno == 0 && !negative) return magnitude;
    if (whole && errno == 0 && magnitude > 0 && magnitude <= uint64_t{1} << 63)
      return static_cast<int64_t>(0 - magnitude);
    const double found = to_double(literal.c_str());
    if (!std::isfinite(found)) fail("a number that is too large");
    return found;
  }

  // Behind its first quotation mark.
  std::string string() {
    std::string found;
    while (!take('"')) {
      if (at_ >= text_.size()) fail("a string does not end");
      if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("a control character in a string");
      if (take('\\')) escape(found);
      else found += text_[at_++];
    }
    return found;
  }

  void escape(std::string& found) {
    static const std::string kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    const size_t place = at_ < text_.size() ? kNames.find(text_[at_]) : std::string::npos;
    if (place != std::string::npos) return ++at_, found.push_back(kValues[place]);
    if (!take('u')) fail("an unknown escape");
    uint32_t code = unit();
    if (code >= 0xd800 && code < 0xdc00 && text_.compare(at_, 2, "\\u") == 0) {
      at_ += 2;
      const uint32_t low = unit();
      if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code >= 0xd800 && code <= 0xdfff) fail("half of a surrogate pair");
    append_utf8(code, found);
  }

  uint32_t unit() {  // behind `\u`
    const std::string digits = text_.substr(at_, 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
      fail("four hexadecimal digits are missing");
    at_ += 4;
    return static_cast<uint32_t>(strtoul(digits.c_str(), nullptr, 16));
  }

  const std::string& text_;
  const std::string& subject_;
  size_t at_ = 0, values_ = 0;
};

void write_string(const std::string& value, std::string& out) {
  out += '"';
  for (const char each : value) {
    char code[8];
    snprintf(code, sizeof code, "\\u%04x", each);
    if (static_cast<unsigned char>(each) < 0x20) out += code;
    else if (each == '"' || each == '\\') out += {'\\', each};
    else out += each;
  }
  out += '"';
}

std::string written(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    for (char* each = text; *each != '\0'; each++)
      if (strchr("0123456789+-e", *each) == nullptr) *each = '.';
    if (to_double(text) == value) break;
  }
  if (strpbrk(text, ".e") == nullptr) strcat(text, ".0");
  return text;
}

[[noreturn]] void refuse(const Json& value, const std::string& what, const char* expected) {
  std::string given = value.text();
  if (value.is(Json::Kind::kArray)) given = "a list";
  if (value.is(Json::Kind::kObject)) given = "an object";
  if (given.size() > 80) given = "a string of " + std::to_string(given.size() - 2) + " bytes";
  throw input_error(what, " is ", given, ": expected ", expected);
}

}  // namespace

Json::Json(int64_t value)
    : kind_(Kind::kNumber),
      number_(static_cast<double>(value)),
      integer_(true),
      magnitude_(value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value)) {}
Json::Json(uint64_t value)
    : kind_(Kind::kNumber), number_(static_cast<double>(value)), integer_(true), magnitude_(value) {}

Json Json::parse(const std::string& text, const std::string& subject) { return Parser(text, subject).document(); }

std::string Json::text() const {
  std::string out;
  switch (kind_) {
    case Kind::kNull: return "null";
    case Kind::kBool: return number_ != 0 ? "true" : "false";
    case Kind::kNumber: return integer_ ? (number_ < 0 ? "-" : "") + std::to_string(magnitude_) : written(number_);
    case Kind::kString: write_string(text_, out); return out;
    case Kind::kArray:
      for (const Json& item : array_) out += (out.empty() ? "[" : ", ") + item.text();
      return (out.empty() ? "[" : out) + "]";
    case Kind::kObject:
      for (const Member& member : object_) {
        out += out.empty() ? "{" : ", ";
        write_string(member.first, out);
        out += ": " + member.second.text();
      }
      return (out.empty() ? "{" : out) + "}";
  }
  return out;
}

const Json& Json::expect(Kind kind, const std::string& what, const char* expected) const {
  if (kind_ != kind || (expected == kWhole && !integer_)) refuse(*this, what, expected);
  return *this;
}

int64_t Json::integer(const std::string& what, int64_t least, int64_t most) const {
  expect(Kind::kNumber, what, kWhole);
  const bool negative = number_ < 0;
  const bool fits = magnitude_ <= (uint64_t{1} << 63) - !negative;
  const auto found = static_cast<int64_t>(negative ? 0 - magnitude_ : magnitude_);
  if (!fits || found < least || found > most)
    throw input_error(what, " ", text(), " is out of range: ", least,
                      (most == INT64_MAX ? " or more" : " to " + std::to_string(most)));
  return found;
}

uint64_t Json::whole(const std::string& what) const {
  expect(Kind::kNumber, what, kWhole);
  if (number_ < 0) throw input_error(what, " ", text(), " is out of range: 0 or more");
  return magnitude_;
}

const Json* Json::find(const std::string& key) const {
  for (const Member& member : object_)
    if (member.first == key) return &member.second;
  return nullptr;
}

const Json& Json::at(const std::string& key, const std::string& what) const {
  object(what);
  const Json* found = find(key);
  if (found == nullptr) throw input_error(what, " has no ", key);
  return *found;
}

void Json::set(const std::string& key, Json value) {
  kind_ = Kind::kObject;
  for (Member& member : object_)
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  object_.emplace_back(key, std::move(value));
}

}  // namespace edgedecode
