#include "tables.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace edgedecode {
namespace {

constexpr char kMagic[] = "edtokens";  // 8 bytes, then the version and the number of tables
constexpr uint32_t kVersion = 1;
constexpr size_t kHeader = 16 + 16 * Tables::kCount;

}  // namespace

void Tables::damaged() const { throw manifest_error(path_ + " is damaged: package the model again"); }

Tables::Tables(const std::string& path) : path_(path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    if (file >= 0) close(file);
    throw manifest_error("no tokenizer file " + path + ": package the model again");
  }
  size_ = static_cast<size_t>(status.st_size);
  void* mapped = size_ < kHeader ? MAP_FAILED : mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) damaged();
  data_ = static_cast<const char*>(mapped);
  try {
    uint32_t version, count;
    std::memcpy(&version, data_ + 8, 4);
    std::memcpy(&count, data_ + 12, 4);
    if (std::memcmp(data_, kMagic, 8) != 0) damaged();
    if (version != kVersion || count != kCount) {
      throw manifest_error(path + " has format " + std::to_string(version) + ", this library reads format " +
                           std::to_string(kVersion) + ": package the model again");
    }
    for (int name = 0; name < kCount; ++name) {
      std::memcpy(&starts_[name], data_ + 16 + 16 * name, 8);
      std::memcpy(&sizes_[name], data_ + 24 + 16 * name, 8);
      if (starts_[name] % 8 || starts_[name] > size_ || sizes_[name] > size_ - starts_[name]) damaged();
    }
  } catch (...) {
    munmap(mapped, size_);
    throw;
  }
}

Tables::~Tables() { munmap(const_cast<char*>(data_), size_); }

}  // namespace edgedecode
