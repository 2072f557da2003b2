// The memory budget: every allocation of size holds a lease, and one that does not fit is refused before it is made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace edgedecode {

struct Holder {
  std::string name;
  int64_t nbytes;
};

std::string format_nbytes(int64_t nbytes, int decimals = 1);  // "12.3 MB"
std::string size_option(int64_t nbytes);  // a value of "memory", in bytes, rounded up

class Budget;

// A named share of a budget, released with it. Movable; an empty one holds nothing.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { release(); }
  void resize(int64_t nbytes);  // throws budget_exceeded; the lease then stays as it is
  void release();

 private:
  friend class Budget;
  Budget* budget_ = nullptr;
  std::string name_;
  int64_t nbytes_ = 0;
};

// A hard limit over the sum of all leases; outlives them. Thread-safe.
class Budget {
 public:
  explicit Budget(int64_t limit) : limit_(limit) {}
  int64_t limit() const { return limit_; }
  int64_t used() const;
  std::vector<Holder> holders() const;  // by name, of one name together
  Lease reserve(const std::string& name, int64_t nbytes);  // throws budget_exceeded

 private:
  friend class Lease;
  void change(const std::string& name, int64_t more);

  const int64_t limit_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> held_;
  int64_t used_ = 0;
};

// What an app may hold if it asks for no limit: what it holds now, and three quarters of what is available.
int64_t default_limit();
// Resident memory of this process, and its highest; 0 if the system does not tell.
int64_t resident_nbytes();
int64_t peak_nbytes();

}  // namespace edgedecode
