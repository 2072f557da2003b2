// A file that is mapped for reading: pages are read when they are needed, and shared between processes.
#pragma once

#include <cstdint>
#include <string>

namespace edgedecode {

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

}  // namespace edgedecode
