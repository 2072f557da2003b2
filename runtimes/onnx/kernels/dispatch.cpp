// Chooses the instruction set of the kernels: the best one that this processor supports, or one by name.
#include <atomic>
#include <cstring>
#include <initializer_list>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace edgedecode {
namespace {

bool has_avx512() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

// Leaf 1, ECX bit 29: half-precision conversion, which gcc 10's __builtin_cpu_supports does not know.
bool has_half_precision() {
#if defined(__x86_64__) && defined(__GNUC__)
  unsigned a = 1, b, c = 0, d;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (c >> 29 & 1) != 0;
#else
  return false;
#endif
}

bool has_avx2() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_half_precision();
#else
  return false;
#endif
}

// Leaf 7, sub-leaf 1, EAX bit 4; some supported compilers do not know the feature's name.
bool has_avxvnni() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (!has_avx2()) return false;
  unsigned a = 7, b, c = 1, d;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (a >> 4 & 1) != 0;
#else
  return false;
#endif
}

bool has_dot_products() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & (1 << 20)) != 0;  // HWCAP_ASIMDDP
#elif defined(__aarch64__) && defined(__APPLE__)
  return true;
#else
  return false;
#endif
}

bool has_int8_matrices() {
#if defined(__aarch64__) && defined(__linux__)
  return has_dot_products() && (getauxval(AT_HWCAP2) & (1 << 13)) != 0;  // HWCAP2_I8MM
#elif defined(__aarch64__) && defined(__APPLE__)
  int found = 0;
  size_t size = sizeof found;
  return sysctlbyname("hw.optional.arm.FEAT_I8MM", &found, &size, nullptr, 0) == 0 && found != 0;
#else
  return false;
#endif
}

std::atomic<const Kernels*> chosen{nullptr};

const Kernels* best() {
  for (const char* name : {"avx512", "avxvnni", "avx2", "i8mm", "neon"})
    if (const Kernels* table = kernels_named(name)) return table;
  return kernels_generic();
}

}  // namespace

const Kernels* kernels_named(const char* name) {
  if (!strcmp(name, "avx512")) return has_avx512() ? kernels_avx512() : nullptr;
  if (!strcmp(name, "avxvnni")) return has_avxvnni() ? kernels_avxvnni() : nullptr;
  if (!strcmp(name, "avx2")) return has_avx2() ? kernels_avx2() : nullptr;
  if (!strcmp(name, "i8mm")) return has_int8_matrices() ? kernels_i8mm() : nullptr;
  if (!strcmp(name, "neon")) return has_dot_products() ? kernels_neon() : nullptr;
  return strcmp(name, "generic") ? nullptr : kernels_generic();
}

bool choose_kernels(const char* name) {
  const Kernels* table = strcmp(name, "auto") ? kernels_named(name) : best();
  if (table != nullptr) chosen.store(table);
  return table != nullptr;
}

const Kernels* kernels() {
  const Kernels* table = chosen.load(std::memory_order_relaxed);
  if (table == nullptr) chosen.store(table = best());
  return table;
}

}  // namespace edgedecode
