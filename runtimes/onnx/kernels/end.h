// Ends the target attribute of begin.h.
#if defined(EDGE_TARGET)
#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif
