// SHA-256 (FIPS 180-4), for digests of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace edgedecode {

std::string sha256(const void* data, size_t nbytes);  // in hexadecimal

}  // namespace edgedecode
