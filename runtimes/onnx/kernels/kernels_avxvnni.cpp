// Kernels for x86-64 with AVX2 and the integer dot products of AVX-VNNI.
// Older compilers do not support the extension.
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 11)
#define EDGE_KNOWN
#endif
#if defined(__x86_64__) && defined(EDGE_KNOWN)
#define EDGE_TARGET "avxvnni,avx2,fma,f16c"
#endif
#include "begin.h"

#if defined(__x86_64__) && defined(EDGE_KNOWN)
namespace edgedecode {
namespace avxvnni {
#define EDGE_AVXVNNI
#define EDGE_NAME "avxvnni"
#include "scalars.h"
#include "vectors.h"
#include "dots.h"
#include "rows.h"
}  // namespace avxvnni
const Kernels* kernels_avxvnni() { return &avxvnni::kTable; }
}  // namespace edgedecode
#else
const edgedecode::Kernels* edgedecode::kernels_avxvnni() { return nullptr; }
#endif
#include "end.h"
