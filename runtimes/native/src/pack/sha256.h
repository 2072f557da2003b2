// SHA-256 (FIPS 180-4), for digests of files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace edgedecode {

class Sha256 {
 public:
  void add(const void* data, size_t nbytes);
  std::string hex();  // ends the message

 private:
  void block(const uint8_t* data);
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_ = {};
  uint64_t count_ = 0;
};

std::string file_sha256(const std::string& path);  // throws manifest_error

}  // namespace edgedecode
