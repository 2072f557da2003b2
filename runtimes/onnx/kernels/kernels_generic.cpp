// Kernels for any processor, in portable C++.
#include "begin.h"

#if 1
namespace edgedecode {
namespace generic {
#define EDGE_PLAIN
#define EDGE_NAME "generic"
#include "scalars.h"
#include "vectors.h"
#include "dots.h"
#include "rows.h"
}  // namespace generic
const Kernels* kernels_generic() { return &generic::kTable; }
}  // namespace edgedecode
#else
const edgedecode::Kernels* edgedecode::kernels_generic() { return nullptr; }
#endif
#include "end.h"
