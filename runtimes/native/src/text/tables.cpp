#include "tables.h"

namespace edgedecode {
namespace {

constexpr char kMagic[] = "edtokens";  // 8 bytes, then the version and the number of tables
constexpr uint32_t kVersion = 1;
constexpr size_t kHeader = 16 + 16 * Tables::kCount;

}  // namespace

void Tables::damaged() const { throw manifest_error(path_, " is damaged: package the model again"); }

Tables::Tables(const std::string& path) : path_(path), file_(path) {
  const auto size = static_cast<uint64_t>(file_.nbytes());
  if (size < kHeader || std::memcmp(file_.data(), kMagic, 8) != 0) damaged();
  uint32_t version, count;
  std::memcpy(&version, file_.data() + 8, 4);
  std::memcpy(&count, file_.data() + 12, 4);
  if (version != kVersion || count != kCount) {
    throw manifest_error(path, " has format ", version, ", this library reads format ", kVersion,
                         ": package the model again");
  }
  for (int name = 0; name < kCount; ++name) {
    std::memcpy(&starts_[name], file_.data() + 16 + 16 * name, 8);
    std::memcpy(&sizes_[name], file_.data() + 24 + 16 * name, 8);
    if (starts_[name] % 8 || starts_[name] > size || sizes_[name] > size - starts_[name]) damaged();
  }
}

}  // namespace edgedecode
