// x86-64 with AVX-512 (F, DQ, BW, VL).
#if defined(__x86_64__)
#include "isa_includes.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#endif
#define GS_ISA_NAMESPACE with_avx512
#define GS_BYTES 64
#define GS_REGISTERS 32
#include "isa_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace gs {
const Isa avx512{"avx512",
                 [] {
                   return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
                 },
                 with_avx512::forward, with_avx512::backward, with_avx512::samples,
                 with_avx512::normal, with_avx512::normal_at, with_avx512::posterior,
                 with_avx512::batchnorm, with_avx512::natural};
}
#endif
