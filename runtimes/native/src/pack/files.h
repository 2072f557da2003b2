// Files: mapped for reading, or read, and their digests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace edgedecode {

// Pages are read when they are needed, and shared between processes.
class Mapped {
 public:
  explicit Mapped(const std::string& path);  // throws manifest_error
  ~Mapped();
  Mapped(const Mapped&) = delete;
  const uint8_t* data() const { return static_cast<const uint8_t*>(data_); }
  int64_t nbytes() const { return nbytes_; }

 private:
  void* data_ = nullptr;
  int64_t nbytes_ = 0;
};

// All of a file; none: it cannot be read, is none, or has more bytes than `most`.
std::optional<std::string> file_text(const std::string& path, int64_t most = 4 << 20);

// SHA-256 (FIPS 180-4), in hexadecimal.
std::string sha256(const void* data, size_t nbytes);

}  // namespace edgedecode
