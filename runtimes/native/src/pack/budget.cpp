#include "budget.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "../errors.h"
#include "files.h"

namespace edgedecode {
namespace {

// "weights:target" becomes "the target's weights".
std::string purpose(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return name;
  const std::string kind = name.substr(0, colon);
  return "the " + name.substr(colon + 1) + "'s " + (kind == "kv" ? "keys and values" : kind);
}

// The value of a line "NAME   123 kB" of a file of /proc, in bytes; 0: there is none.
int64_t proc_nbytes(const char* path, const std::string& name) {
  const std::string text = "\n" + file_text(path).value_or("");
  const size_t place = text.find("\n" + name);
  return place == std::string::npos ? 0 : 1024 * std::atoll(text.c_str() + place + 1 + name.size());
}

}  // namespace

std::string format_nbytes(int64_t nbytes, int decimals) {
  char text[48];
  snprintf(text, sizeof text, "%.*f MB", decimals, static_cast<double>(nbytes) / 1e6);
  return text;
}

std::string size_option(int64_t nbytes) {
  return std::to_string((nbytes + 99999) / 100000 * 100000);
}

Lease& Lease::operator=(Lease&& other) noexcept {
  std::swap(budget_, other.budget_), std::swap(name_, other.name_), std::swap(nbytes_, other.nbytes_);
  return *this;
}

void Lease::resize(int64_t nbytes) {
  if (budget_ != nullptr) budget_->change(name_, nbytes - nbytes_);
  nbytes_ = nbytes;
}

void Lease::release() {
  if (budget_ != nullptr) budget_->change(name_, -nbytes_);
  budget_ = nullptr;
  nbytes_ = 0;
}

int64_t Budget::used() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

std::vector<Holder> Budget::holders() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Holder> found;
  for (const auto& each : held_)
    if (each.second > 0) found.push_back({each.first, each.second});
  return found;
}

Lease Budget::reserve(const std::string& name, int64_t nbytes) {
  Lease lease;
  change(name, nbytes);
  lease.budget_ = this;
  lease.name_ = name;
  lease.nbytes_ = nbytes;
  return lease;
}

void Budget::change(const std::string& name, int64_t more) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (more > 0 && more > limit_ - used_) {
    const int64_t free = std::max<int64_t>(0, limit_ - used_);
    int places = 1;
    while (places < 6 && format_nbytes(more, places) == format_nbytes(free, places)) places++;
    throw budget_exceeded(format_nbytes(more, places), " are needed for ", purpose(name), ", but only ",
                          format_nbytes(free, places), " of the ", format_nbytes(limit_),
                          " budget are free: raise \"memory\" to ", size_option(used_ + more),
                          " or more, or give a smaller \"context\"");
  }
  used_ += more;
  held_[name] += more;
}

int64_t default_limit() {
  int64_t available = proc_nbytes("/proc/meminfo", "MemAvailable:");
  if (available == 0) {
    const int64_t pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
    available = pages > 0 && size > 0 ? pages * size / 2 : int64_t{1} << 30;
  }
  return resident_nbytes() + available / 4 * 3;
}

int64_t resident_nbytes() { return proc_nbytes("/proc/self/status", "VmRSS:"); }
int64_t peak_nbytes() { return proc_nbytes("/proc/self/status", "VmHWM:"); }

}  // namespace edgedecode
