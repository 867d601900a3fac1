// Any processor: the baseline of the platform (SSE2 on x86-64, NEON on aarch64).
#include "isa_includes.h"

#define GS_ISA_NAMESPACE with_generic
#define GS_BYTES 16
#define GS_REGISTERS 16
#include "isa_body.h"

namespace gs {
const Isa generic{"generic", [] { return true; }, with_generic::forward, with_generic::backward,
                  with_generic::samples, with_generic::normal, with_generic::normal_at,
                  with_generic::posterior, with_generic::batchnorm,
                  with_generic::natural};
}
