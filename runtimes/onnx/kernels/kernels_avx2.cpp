// Kernels for x86-64 with AVX2.
#if defined(__x86_64__)
#define EDGE_TARGET "avx2,fma,f16c"
#endif
#include "begin.h"

#if defined(__x86_64__) || defined(_M_X64)
namespace edgedecode {
namespace avx2 {
#define EDGE_AVX2
#define EDGE_NAME "avx2"
#include "scalars.h"
#include "vectors.h"
#include "dots.h"
#include "rows.h"
}  // namespace avx2
const Kernels* kernels_avx2() { return &avx2::kTable; }
}  // namespace edgedecode
#else
const edgedecode::Kernels* edgedecode::kernels_avx2() { return nullptr; }
#endif
#include "end.h"
