// For x86-64 with AVX2: sixteen registers of eight floats.
#define PARROT_NAMESPACE avx2
#define PARROT_ROWS_AT_ONCE 3
#include "attention_simple.hpp"

const parrot::Kernel* parrot::avx2_kernel(Type type, Layout layout) { return avx2::simple_kernel(type, layout); }
