// A mapped file of tables.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "../errors.h"
#include "../pack/files.h"

namespace edgedecode {

// Elements in the mapped file, which may be damaged: `at` checks the place.
template <typename T>
struct Table {
  const T* data = nullptr;
  size_t count = 0;
  const T& operator[](size_t place) const { return data[place]; }
  const T& at(size_t place) const {
    if (place >= count) throw manifest_error("tokenizer.bin is damaged: package the model again");
    return data[place];
  }
  const T* begin() const { return data; }
  const T* end() const { return data + count; }
};

// Two tokens that become one. Sorted by left token, whose place is in another table, then by `right`.
struct Pair {
  uint32_t right, rank, id;
};

// A property of every code point, in blocks of 256 of which equal ones are stored once.
struct Property {
  Table<uint16_t> blocks;
  Table<uint8_t> values;
  uint8_t of(uint32_t code) const { return values.at(blocks.at(code >> 8) * size_t{256} + (code & 255)); }
};

class Tables {
 public:
  // The order of the tables in the file, as in text_file.py.
  enum Name {
    kFacts, kTextEnds, kTexts, kFlags, kSorted, kBytes, kPairStarts, kPairs, kAdded, kAddedEnds, kAddedTexts,
    kClassBlocks, kClasses, kSteps, kCode, kMasks, kFormBlocks, kForms, kDecomposed, kParts, kComposed, kLeading,
    kTrailing, kCount
  };

  explicit Tables(const std::string& path);

  template <typename T>
  Table<T> table(Name name) const {
    if (sizes_[name] % sizeof(T)) damaged();
    return {reinterpret_cast<const T*>(file_.data() + starts_[name]), sizes_[name] / sizeof(T)};
  }
  [[noreturn]] void damaged() const;

 private:
  std::string path_;
  Mapped file_;
  uint64_t starts_[kCount] = {}, sizes_[kCount] = {};
};

}  // namespace edgedecode
