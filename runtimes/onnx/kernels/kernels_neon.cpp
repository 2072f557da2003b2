// Kernels for arm64 with dot products.
#if !(defined(__aarch64__) || defined(_M_ARM64))
#elif defined(__clang__)
#define EDGE_TARGET "dotprod"
#else
#define EDGE_TARGET "arch=armv8.2-a+dotprod"
#endif
#include "begin.h"

#if defined(__aarch64__) || defined(_M_ARM64)
namespace edgedecode {
namespace neon {
#define EDGE_NEON
#define EDGE_NAME "neon"
#include "scalars.h"
#include "vectors.h"
#include "dots.h"
#include "rows.h"
}  // namespace neon
const Kernels* kernels_neon() { return &neon::kTable; }
}  // namespace edgedecode
#else
const edgedecode::Kernels* edgedecode::kernels_neon() { return nullptr; }
#endif
#include "end.h"
