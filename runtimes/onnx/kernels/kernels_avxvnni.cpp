// The kernels for x86-64 with AVX2 and the integer dot products of AVX-VNNI.
#if defined(__x86_64__)
#define EDGE_TARGET "avxvnni,avx2,fma,f16c"
#endif
#include "begin.h"

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__clang__) || !defined(__GNUC__) || __GNUC__ >= 11)
namespace edgedecode {
namespace avxvnni {
#define EDGE_AVXVNNI
#define EDGE_NAME "avxvnni"
#include "scalars.h"
#include "vectors.h"
#include "rows.h"
}  // namespace avxvnni
const Kernels* kernels_avxvnni() { return &avxvnni::kTable; }
}  // namespace edgedecode
#else
const edgedecode::Kernels* edgedecode::kernels_avxvnni() { return nullptr; }
#endif
#include "end.h"
