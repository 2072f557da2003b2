// Kernels for x86-64 with AVX-512 and its integer dot products (VNNI).
#if defined(__x86_64__)
#define EDGE_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
#endif
#include "begin.h"

#if defined(__x86_64__) || defined(_M_X64)
namespace edgedecode {
namespace avx512 {
#define EDGE_AVX512
#define EDGE_NAME "avx512"
#include "scalars.h"
#include "vectors.h"
#include "dots.h"
#include "rows.h"
}  // namespace avx512
const Kernels* kernels_avx512() { return &avx512::kTable; }
}  // namespace edgedecode
#else
const edgedecode::Kernels* edgedecode::kernels_avx512() { return nullptr; }
#endif
#include "end.h"
