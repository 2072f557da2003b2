// Kernels for arm64 with dot products and int8 matrix products.
// Older compilers support the instructions only if the command line enables them.
#if (defined(__clang__) && __clang_major__ >= 17) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 10) || \
    defined(__ARM_FEATURE_MATMUL_INT8)
#define EDGE_KNOWN
#endif
#if !(defined(__aarch64__) && defined(EDGE_KNOWN))
#elif defined(__clang__)
#define EDGE_TARGET "dotprod,i8mm"
#else
#define EDGE_TARGET "arch=armv8.2-a+dotprod+i8mm"
#endif
#include "begin.h"

#if defined(__aarch64__) && defined(EDGE_KNOWN)
namespace edgedecode {
namespace i8mm {
#define EDGE_NEON
#define EDGE_I8MM
#define EDGE_NAME "i8mm"
#include "scalars.h"
#include "vectors.h"
#include "dots.h"
#include "rows.h"
}  // namespace i8mm
const Kernels* kernels_i8mm() { return &i8mm::kTable; }
}  // namespace edgedecode
#else
const edgedecode::Kernels* edgedecode::kernels_i8mm() { return nullptr; }
#endif
#include "end.h"
