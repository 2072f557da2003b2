// JSON as the library reads and writes it: strict (RFC 8259), with limits of depth and encoding checked.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace edgedecode {

class Json {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in the order of the text

  Json() = default;
  Json(bool value) : kind_(Kind::kBool), number_(value) {}
  Json(int value) : Json(static_cast<int64_t>(value)) {}
  Json(int64_t value);
  Json(uint64_t value);
  Json(double value) : kind_(Kind::kNumber), number_(value) {}
  Json(const char* value) : kind_(Kind::kString), text_(value) {}
  Json(std::string value) : kind_(Kind::kString), text_(std::move(value)) {}
  Json(Array value) : kind_(Kind::kArray), array_(std::move(value)) {}
  Json(Object value) : kind_(Kind::kObject), object_(std::move(value)) {}

  // Throws input_error with `subject`, the place and what is wrong. A key that comes twice is an error.
  static Json parse(const std::string& text, const std::string& subject);
  std::string text() const;  // one line; numbers so that reading them gives the same bits

  bool is(Kind kind) const { return kind_ == kind; }
  // The value as a type; `what` names it in the error: "max_tokens is "5": expected a whole number".
  bool boolean(const std::string& what) const { return expect(Kind::kBool, what, "true or false").number_ != 0; }
  double number(const std::string& what) const { return expect(Kind::kNumber, what, "a number").number_; }
  int64_t integer(const std::string& what, int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;
  uint64_t whole(const std::string& what) const;  // up to 2^64 - 1: a seed
  const std::string& string(const std::string& what) const { return expect(Kind::kString, what, "a string").text_; }
  const Array& array(const std::string& what) const { return expect(Kind::kArray, what, "a list").array_; }
  const Object& object(const std::string& what) const { return expect(Kind::kObject, what, "an object").object_; }
  // The member of an object, or null.
  const Json* find(const std::string& key) const;
  // The member, which must be there.
  const Json& at(const std::string& key, const std::string& what) const;
  void set(const std::string& key, Json value);

 private:
  const Json& expect(Kind kind, const std::string& what, const char* expected) const;  // itself; throws input_error

  Kind kind_ = Kind::kNull;
  double number_ = 0;
  bool integer_ = false;    // of kNumber: written without a fraction, and fits 64 bits
  uint64_t magnitude_ = 0;  // of an integer, with its sign in number_
  std::string text_;
  Array array_;
  Object object_;
};

}  // namespace edgedecode
