// Chooses the instruction set of the kernels: the best one that this processor supports, or one by name.
#include <atomic>
#include <cstring>
#include <initializer_list>

#include "kernels.h"

#if defined(_MSC_VER) && defined(_M_X64)
#include <intrin.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_M_ARM64)
extern "C" __declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long);
#endif

namespace edgedecode {
namespace {

#if defined(__x86_64__) || defined(_M_X64)
// What the processor reports in a leaf and sub-leaf of CPUID; zeros for one that it does not know.
struct Report {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  Report(uint32_t leaf, uint32_t sub_leaf) {
#if defined(_MSC_VER)
    int found[4];
    __cpuid(found, 0);
    if (static_cast<uint32_t>(found[0]) < leaf) return;
    __cpuidex(found, static_cast<int>(leaf), static_cast<int>(sub_leaf));
    eax = found[0], ebx = found[1], ecx = found[2], edx = found[3];
#else
    __get_cpuid_count(leaf, sub_leaf, &eax, &ebx, &ecx, &edx);
#endif
  }
};

// Whether the system keeps these registers across threads: bits of XCR0, read only where OSXSAVE allows it.
bool keeps(uint32_t registers) {
  if (!(Report(1, 0).ecx >> 27 & 1)) return false;
#if defined(_MSC_VER)
  const uint32_t kept = static_cast<uint32_t>(_xgetbv(0));
#else
  uint32_t kept, high;
  asm volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
#endif
  return (kept & registers) == registers;
}

constexpr uint32_t kYmm = 0x06, kZmm = 0xe6;

// AVX2, fused multiply-add, and conversion to half precision.
bool has_avx2() {
  const Report first(1, 0);
  return keeps(kYmm) && (first.ecx >> 12 & 1) && (first.ecx >> 29 & 1) && (Report(7, 0).ebx >> 5 & 1);
}

// AVX-512 F, DQ, BW, VL and VNNI.
bool has_avx512() {
  constexpr uint32_t kNeeded = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  const Report seventh(7, 0);
  return has_avx2() && keeps(kZmm) && (seventh.ebx & kNeeded) == kNeeded && (seventh.ecx >> 11 & 1);
}

bool has_avxvnni() { return has_avx2() && Report(7, 0).eax >= 1 && (Report(7, 1).eax >> 4 & 1); }
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avxvnni() { return false; }
#endif

bool has_dot_products() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & (1 << 20)) != 0;  // HWCAP_ASIMDDP
#elif defined(__aarch64__) && defined(__APPLE__)
  return true;
#elif defined(_M_ARM64)
  return IsProcessorFeaturePresent(43) != 0;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
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

// Where `generic` is left, the processor has no products of bytes. ONNX Runtime then makes all weights floats in every
// pass, which takes four times as long as a row here; it is faster from about eight rows on.
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
