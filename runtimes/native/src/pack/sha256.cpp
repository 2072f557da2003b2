#include "sha256.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "../errors.h"

namespace edgedecode {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
const uint32_t* constants() {
  static const std::array<uint32_t, 64> found = [] {
    std::array<uint32_t, 64> table{};
    size_t count = 0;
    for (uint32_t number = 2; count < table.size(); number++) {
      bool prime = true;
      for (uint32_t divisor = 2; divisor * divisor <= number; divisor++) prime = prime && number % divisor != 0;
      if (!prime) continue;
      const auto below = [number](uint64_t root) {  // root^3 <= number * 2^96, in integers of 128 bits and a rest
        const unsigned __int128 square = static_cast<unsigned __int128>(root) * root;
        const unsigned __int128 low = (square & 0xffffffffffffffffu) * root;
        const unsigned __int128 high = (square >> 64) * root + (low >> 64);
        return high < static_cast<unsigned __int128>(number) << 32;
      };
      uint64_t root = 0;  // the cube root times 2^32
      for (int bit = 35; bit >= 0; bit--)
        if (below(root | uint64_t{1} << bit)) root |= uint64_t{1} << bit;
      table[count++] = static_cast<uint32_t>(root);
    }
    return table;
  }();
  return found.data();
}

uint32_t turned(uint32_t value, int by) { return value >> by | value << (32 - by); }

}  // namespace

void Sha256::block(const uint8_t* data) {
  const uint32_t* k = constants();
  uint32_t w[64];
  for (int i = 0; i < 16; i++)
    w[i] = static_cast<uint32_t>(data[4 * i]) << 24 | static_cast<uint32_t>(data[4 * i + 1]) << 16 |
           static_cast<uint32_t>(data[4 * i + 2]) << 8 | data[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    const uint32_t s0 = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  std::array<uint32_t, 8> s = state_;
  for (int i = 0; i < 64; i++) {
    const uint32_t sum1 = turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25);
    const uint32_t first = s[7] + sum1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
    const uint32_t sum0 = turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22);
    const uint32_t second = sum0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    for (int j = 7; j > 0; j--) s[j] = s[j - 1];
    s[4] += first;
    s[0] = first + second;
  }
  for (size_t i = 0; i < 8; i++) state_[i] += s[i];
}

void Sha256::add(const void* data, size_t nbytes) {
  const uint8_t* next = static_cast<const uint8_t*>(data);
  while (nbytes > 0) {
    const size_t held = count_ % 64;
    if (held == 0 && nbytes >= 64) {
      block(next);
      count_ += 64, next += 64, nbytes -= 64;
      continue;
    }
    const size_t more = std::min(64 - held, nbytes);
    memcpy(rest_.data() + held, next, more);
    count_ += more, next += more, nbytes -= more;
    if (count_ % 64 == 0) block(rest_.data());
  }
}

std::string Sha256::hex() {
  const uint64_t bits = 8 * count_;
  const uint8_t one = 0x80, zero = 0;
  add(&one, 1);
  while (count_ % 64 != 56) add(&zero, 1);
  uint8_t length[8];
  for (int i = 0; i < 8; i++) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  add(length, 8);
  std::string text;
  char digits[12];
  for (const uint32_t word : state_) {
    snprintf(digits, sizeof digits, "%08x", word);
    text += digits;
  }
  return text;
}

std::string file_sha256(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 digest;
  std::vector<char> buffer(1 << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0)
    digest.add(buffer.data(), static_cast<size_t>(file.gcount()));
  if (!file.eof()) throw manifest_error(path + " cannot be read: copy the folder again");
  return digest.hex();
}

}  // namespace edgedecode
