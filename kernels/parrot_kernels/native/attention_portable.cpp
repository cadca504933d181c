// For processors that no other file is for.
#define PARROT_NAMESPACE portable
#define PARROT_ROWS_AT_ONCE 1
#include "attention_simple.hpp"

const parrot::Kernel* parrot::portable_kernel(Type type, Layout layout) { return portable::simple_kernel(type, layout); }
