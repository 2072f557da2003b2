#include "json.h"

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

constexpr int kMostDepth = 64;

// Numbers are read and written with a point, whatever the app has told the C library.
double to_double(const char* text) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(text, nullptr, plain);
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& subject) : text_(text), subject_(subject) {}

  Json document() {
    Json found = value(0);
    skip_space();
    if (at_ != text_.size()) fail("more text after the end");
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw input_error(subject_ + " is not valid JSON, at character " + std::to_string(at_ + 1) + ": " + what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    at_++;
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() && strchr(" \t\n\r", text_[at_]) != nullptr && text_[at_] != '\0') at_++;
  }
  bool digit() const { return peek() >= '0' && peek() <= '9'; }

  Json value(int depth) {
    if (depth > kMostDepth) fail("more than " + std::to_string(kMostDepth) + " levels");
    skip_space();
    switch (peek()) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': return Json(string());
      case 't': return word("true", Json(true));
      case 'f': return word("false", Json(false));
      case 'n': return word("null", Json());
      default: return number();
    }
  }

  Json word(const char* wanted, Json value) {
    if (text_.compare(at_, strlen(wanted), wanted) != 0) fail("an unknown word");
    at_ += strlen(wanted);
    return value;
  }

  Json object(int depth) {
    Json::Object members;
    at_++;
    skip_space();
    if (take('}')) return Json(std::move(members));
    do {
      skip_space();
      if (peek() != '"') fail("a key in quotation marks is missing");
      std::string key = string();
      skip_space();
      if (!take(':')) fail("a colon is missing");
      Json found = value(depth + 1);
      members.emplace_back(std::move(key), std::move(found));
      skip_space();
    } while (take(','));
    if (!take('}')) fail("a comma or } is missing");
    std::vector<const std::string*> keys;
    for (const auto& member : members) keys.push_back(&member.first);
    std::sort(keys.begin(), keys.end(), [](auto* one, auto* other) { return *one < *other; });
    for (size_t i = 1; i < keys.size(); i++)
      if (*keys[i] == *keys[i - 1]) fail("the key " + Json(keys[i]->substr(0, 60)).text() + " comes twice");
    return Json(std::move(members));
  }

  Json array(int depth) {
    Json::Array items;
    at_++;
    skip_space();
    if (take(']')) return Json(std::move(items));
    do {
      items.push_back(value(depth + 1));
      skip_space();
    } while (take(','));
    if (!take(']')) fail("a comma or ] is missing");
    return Json(std::move(items));
  }

  Json number() {
    const size_t start = at_;
    const bool negative = take('-');
    if (!digit()) fail(at_ >= text_.size() ? "it ends too early" : "a value is missing");
    if (!take('0'))
      while (digit()) at_++;
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (!digit()) fail("a digit is missing");
      while (digit()) at_++;
    }
    if (peek() == 'e' || peek() == 'E') {
      whole = false;
      at_++;
      if (peek() == '+' || peek() == '-') at_++;
      if (!digit()) fail("a digit is missing");
      while (digit()) at_++;
    }
    const std::string literal = text_.substr(start, at_ - start);
    if (whole) {
      uint64_t magnitude = 0;
      bool fits = true;
      for (size_t i = negative; i < literal.size() && fits; i++) {
        const uint64_t next = static_cast<uint64_t>(literal[i] - '0');
        fits = magnitude < UINT64_MAX / 10 || (magnitude == UINT64_MAX / 10 && next <= UINT64_MAX % 10);
        magnitude = magnitude * 10 + next;
      }
      if (fits && !negative) return Json(magnitude);
      if (fits && magnitude > 0 && magnitude <= uint64_t{1} << 63) return Json(static_cast<int64_t>(0 - magnitude));
    }
    const double found = to_double(literal.c_str());
    if (!std::isfinite(found)) fail("a number that is too large");
    return Json(found);
  }

  std::string string() {
    std::string found;
    at_++;
    while (!take('"')) {
      if (at_ >= text_.size()) fail("a string does not end");
      const unsigned char next = static_cast<unsigned char>(text_[at_]);
      if (next < 0x20) fail("a control character in a string");
      if (next == '\\') {
        escape(found);
        continue;
      }
      const Utf8 character = utf8_at(text_, at_);
      if (character.kind != Utf8::kCharacter) fail("bytes that are not UTF-8");
      found.append(text_, at_, character.length);
      at_ += character.length;
    }
    return found;
  }

  void escape(std::string& found) {
    at_++;
    const char kind = peek();
    static const char* const kNames = "\"\\/bfnrt";
    static const char* const kValues = "\"\\/\b\f\n\r\t";
    const char* place = kind == '\0' ? nullptr : strchr(kNames, kind);
    if (place != nullptr) {
      at_++;
      found += kValues[place - kNames];
      return;
    }
    if (kind != 'u') fail("an unknown escape");
    uint32_t code = unit();
    if (code >= 0xd800 && code < 0xdc00 && text_.compare(at_, 2, "\\u") == 0) {
      at_++;
      const uint32_t low = unit();
      if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code >= 0xd800 && code <= 0xdfff) fail("half of a surrogate pair");
    append_utf8(code, found);
  }

  uint32_t unit() {  // of `\uXXXX`, behind the backslash
    uint32_t code = 0;
    at_++;
    for (int i = 0; i < 4; i++, at_++) {
      const char digit = peek();
      const char lower = static_cast<char>(digit | 0x20);
      if (digit >= '0' && digit <= '9')
        code = code * 16 + static_cast<uint32_t>(digit - '0');
      else if (lower >= 'a' && lower <= 'f')
        code = code * 16 + static_cast<uint32_t>(lower - 'a' + 10);
      else
        fail("four hexadecimal digits are missing");
    }
    return code;
  }

  const std::string& text_;
  const std::string& subject_;
  size_t at_ = 0;
};

void write_string(const std::string& value, std::string& out) {
  out += '"';
  for (const char each : value) {
    if (each == '"' || each == '\\') {
      out += '\\';
      out += each;
    } else if (static_cast<unsigned char>(each) < 0x20) {
      char code[8];
      snprintf(code, sizeof code, "\\u%04x", each);
      out += code;
    } else {
      out += each;
    }
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

const char* name_of(const Json& value) {
  static const char* const kNames[] = {"null", "true or false", "a number", "a string", "a list", "an object"};
  return kNames[static_cast<int>(value.kind())];
}

[[noreturn]] void refuse(const Json& value, const std::string& what, const char* expected) {
  throw input_error(what + " is " + name_of(value) + ": expected " + expected);
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

bool Json::boolean(const std::string& what) const {
  if (kind_ != Kind::kBool) refuse(*this, what, "true or false");
  return number_ != 0;
}

double Json::number(const std::string& what) const {
  if (kind_ != Kind::kNumber) refuse(*this, what, "a number");
  return number_;
}

int64_t Json::integer(const std::string& what) const {
  if (kind_ != Kind::kNumber || !integer_) refuse(*this, what, "a whole number");
  const bool negative = number_ < 0;
  if (magnitude_ > (uint64_t{1} << 63) - !negative) throw input_error(what + " is out of range: " + text());
  return static_cast<int64_t>(negative ? 0 - magnitude_ : magnitude_);
}

uint64_t Json::whole(const std::string& what) const {
  if (kind_ != Kind::kNumber || !integer_) refuse(*this, what, "a whole number");
  if (number_ < 0) throw input_error(what + " is out of range: " + text() + ", the least is 0");
  return magnitude_;
}

const std::string& Json::string(const std::string& what) const {
  if (kind_ != Kind::kString) refuse(*this, what, "a string");
  return text_;
}

const Json::Array& Json::array(const std::string& what) const {
  if (kind_ != Kind::kArray) refuse(*this, what, "a list");
  return array_;
}

const Json::Object& Json::object(const std::string& what) const {
  if (kind_ != Kind::kObject) refuse(*this, what, "an object");
  return object_;
}

const Json* Json::find(const std::string& key) const {
  for (const Member& member : object_)
    if (member.first == key) return &member.second;
  return nullptr;
}

const Json& Json::at(const std::string& key, const std::string& what) const {
  object(what);
  const Json* found = find(key);
  if (found == nullptr) throw input_error(what + " has no " + key);
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
