// Begins a file of kernels for one instruction set; EDGE_TARGET contains the compiler's names of its extensions. Standard
// headers are included before: otherwise the linker might share their inline functions, compiled for a newer processor,
// with other files.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__) || defined(_M_ARM64)
#include <arm_neon.h>
#endif

#define EDGE_TEXT_OF(x) #x
#define EDGE_TEXT(x) EDGE_TEXT_OF(x)
#if defined(EDGE_TARGET)
#if defined(__clang__)
_Pragma(EDGE_TEXT(clang attribute push(__attribute__((target(EDGE_TARGET))), apply_to = function)))
#elif defined(__GNUC__)
#pragma GCC push_options
_Pragma(EDGE_TEXT(GCC target(EDGE_TARGET)))
#endif
#endif
