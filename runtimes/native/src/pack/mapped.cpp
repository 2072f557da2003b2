#include "mapped.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <new>

#include "../errors.h"

namespace edgedecode {

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
  if (data_ == nullptr || data_ == MAP_FAILED) throw manifest_error(path + " cannot be mapped: copy the folder again");
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

}  // namespace edgedecode
