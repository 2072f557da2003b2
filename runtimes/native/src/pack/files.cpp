#include "files.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "../errors.h"

namespace edgedecode {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRoots[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
};

uint32_t turned(uint32_t value, int by) { return value >> by | value << (32 - by); }

void add_block(const uint8_t* data, std::array<uint32_t, 8>* state) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i, data += 4)
    w[i] = uint32_t{data[0]} << 24 | uint32_t{data[1]} << 16 | uint32_t{data[2]} << 8 | data[3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  std::array<uint32_t, 8> s = *state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t sum1 = turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25);
    const uint32_t first = s[7] + sum1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRoots[i] + w[i];
    const uint32_t sum0 = turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22);
    const uint32_t second = sum0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    for (int j = 7; j > 0; --j) s[j] = s[j - 1];
    s[4] += first;
    s[0] = first + second;
  }
  for (size_t i = 0; i < 8; ++i) (*state)[i] += s[i];
}

}  // namespace

Mapped::Mapped(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat found = {};
  if (file >= 0 && fstat(file, &found) == 0 && found.st_size > 0) {
    nbytes_ = found.st_size;
    data_ = mmap(nullptr, static_cast<size_t>(nbytes_), PROT_READ, MAP_SHARED, file, 0);
  }
  const bool short_of_memory = data_ == MAP_FAILED && errno == ENOMEM;
  if (file >= 0) ::close(file);
  if (short_of_memory) throw std::bad_alloc();
  if (data_ == nullptr || data_ == MAP_FAILED) throw manifest_error(path, " cannot be mapped: copy the folder again");
}

Mapped::~Mapped() { munmap(data_, static_cast<size_t>(nbytes_)); }

std::optional<std::string> file_text(const std::string& path, int64_t most) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_size > most) return {};
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "rb"), fclose);
  if (!file) return {};
  std::string text;
  text.reserve(static_cast<size_t>(found.st_size));
  char piece[4096];
  while (const size_t count = fread(piece, 1, sizeof piece, file.get())) text.append(piece, count);
  if (ferror(file.get())) return {};
  return text;
}

std::string sha256(const void* data, size_t nbytes) {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* bytes = static_cast<const uint8_t*>(data);
  size_t done = 0;
  for (; nbytes - done >= 64; done += 64) add_block(bytes + done, &state);
  std::vector<uint8_t> rest(bytes + done, bytes + nbytes);
  rest.push_back(0x80);
  rest.resize(rest.size() <= 56 ? 56 : 120);
  for (int shift = 56; shift >= 0; shift -= 8) rest.push_back(static_cast<uint8_t>(8 * uint64_t{nbytes} >> shift));
  for (size_t place = 0; place < rest.size(); place += 64) add_block(rest.data() + place, &state);
  std::string text;
  char digits[12];
  for (const uint32_t word : state) snprintf(digits, sizeof digits, "%08x", word), text += digits;
  return text;
}

}  // namespace edgedecode
