// aarch64: NEON is its baseline; it has twice the registers of the generic unit.
#if defined(__aarch64__)
#include "isa_includes.h"

#define GS_ISA_NAMESPACE with_neon
#define GS_BYTES 16
#define GS_REGISTERS 32
#include "isa_body.h"

namespace gs {
const Isa neon{"neon", [] { return true; }, with_neon::forward, with_neon::backward,
               with_neon::samples, with_neon::normal, with_neon::normal_at, with_neon::posterior,
               with_neon::batchnorm, with_neon::natural};
}
#endif
