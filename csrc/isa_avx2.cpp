// x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#include "isa_includes.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define GS_ISA_NAMESPACE with_avx2
#define GS_BYTES 32
#define GS_REGISTERS 16
#include "isa_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace gs {
const Isa avx2{"avx2",
               [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); },
               with_avx2::forward, with_avx2::backward, with_avx2::samples,
               with_avx2::normal, with_avx2::normal_at, with_avx2::posterior,
               with_avx2::batchnorm, with_avx2::natural};
}
#endif
