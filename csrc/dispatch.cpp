// The C functions: choose the instruction set once, turn exceptions into status codes.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "guard.h"
#include "isa.h"
#include "parallel.h"
#include "plan.h"

namespace gs {
namespace {

const Isa* const KNOWN[] = {
#if defined(__x86_64__)
    &avx512, &avx2,
#elif defined(__aarch64__)
    &neon,
#endif
    &generic,
};

const Isa* best() {
  for (const Isa* isa : KNOWN)
    if (isa->runs_here()) return isa;
  return &generic;
}

std::atomic<const Isa*> chosen{nullptr};

const Isa& isa() {
  const Isa* found = chosen.load();
  if (!found) chosen.store(found = best());
  return *found;
}

template <class F>
int guarded(F&& body) {
  try {
    body();
    return GS_OK;
  } catch (const std::bad_alloc&) {
    return GS_NO_MEMORY;
  } catch (const TooLarge&) {
    return GS_TOO_LARGE;
  } catch (...) {
    return GS_BAD_ARGUMENT;
  }
}

constexpr int64_t NORMALS_PER_TASK = 1 << 14;  // a multiple of a block
constexpr int64_t WEIGHTS_PER_TASK = 1 << 11;  // layers of some 10,000 weights: parts for all threads

size_t item_size(int dtype) { return dtype == GS_FLOAT64 ? 8 : 4; }

}  // namespace
}  // namespace gs

GS_API int gs_forward(const GsGeometry* g, const GsPattern* p, int dtype, const GsForward* f,
                      int threads) {
  if (!gs::is_call(g, p, dtype, f)) return GS_BAD_ARGUMENT;
  return gs::guarded([&] { gs::isa().forward(*g, *p, dtype, *f, std::max(threads, 1)); });
}

GS_API int gs_backward(const GsGeometry* g, const GsPattern* p, int dtype, const GsBackward* b,
                       int threads) {
  if (!gs::is_call(g, p, dtype, b)) return GS_BAD_ARGUMENT;
  return gs::guarded([&] { gs::isa().backward(*g, *p, dtype, *b, std::max(threads, 1)); });
}

GS_API int gs_samples(const GsGeometry* g, const GsPattern* p, int dtype, const GsSamples* s,
                      int threads) {
  if (!gs::is_call(g, p, dtype, s)) return GS_BAD_ARGUMENT;
  return gs::guarded([&] { gs::isa().samples(*g, *p, dtype, *s, std::max(threads, 1)); });
}

GS_API int gs_normal(int dtype, uint64_t seed, uint64_t first, int64_t count, void* out,
                     int threads) {
  if (!gs::is_dtype(dtype) || !gs::are_there(count, {out})) return GS_BAD_ARGUMENT;
  return gs::guarded([&] {
    gs::parallel_for(gs::ceil_div(count, gs::NORMALS_PER_TASK), threads, [&](int64_t task) {
      const int64_t from = task * gs::NORMALS_PER_TASK;
      const int64_t here = std::min(gs::NORMALS_PER_TASK, count - from);
      gs::isa().normal(dtype, seed, first + static_cast<uint64_t>(from), here,
                       static_cast<char*>(out) + static_cast<size_t>(from) * gs::item_size(dtype));
    });
  });
}

GS_API int gs_normal_at(int dtype, uint64_t seed, const int64_t* counters, int64_t count, void* out,
                        int threads) {
  if (!gs::is_dtype(dtype) || !gs::are_there(count, {counters, out})) return GS_BAD_ARGUMENT;
  return gs::guarded([&] {
    gs::parallel_for(gs::ceil_div(count, gs::NORMALS_PER_TASK), threads, [&](int64_t task) {
      const int64_t from = task * gs::NORMALS_PER_TASK;
      const int64_t here = std::min(gs::NORMALS_PER_TASK, count - from);
      gs::isa().normal_at(dtype, seed, counters + from, here,
                          static_cast<char*>(out) + static_cast<size_t>(from) * gs::item_size(dtype));
    });
  });
}

GS_API int gs_posterior(int dtype, const GsPosterior* p, double* sum, int threads) {
  if (!gs::is_call(dtype, p, sum)) return GS_BAD_ARGUMENT;
  return gs::guarded([&] {
    const int64_t tasks = gs::ceil_div(p->count, gs::WEIGHTS_PER_TASK);
    const size_t item = gs::item_size(dtype);
    std::vector<double> part(static_cast<size_t>(tasks));
    gs::parallel_for(tasks, threads, [&](int64_t task) {
      const int64_t from = task * gs::WEIGHTS_PER_TASK;
      const size_t skip = static_cast<size_t>(from) * item;
      GsPosterior here = *p;
      here.count = std::min(gs::WEIGHTS_PER_TASK, p->count - from);
      for (const void** array : {&here.mean, &here.raw, &here.dvariance})
        if (*array) *array = static_cast<const char*>(*array) + skip;
      for (void** array : {&here.variance, &here.raw_grad})
        if (*array) *array = static_cast<char*>(*array) + skip;
      part[static_cast<size_t>(task)] = gs::isa().posterior(dtype, here);
    });
    *sum = 0.0;
    for (const double value : part) *sum += value;  // in one order for any number of threads
  });
}

GS_API int gs_second_moment(int dtype, int64_t count, const void* mean, const void* raw, double* sum,
                            int threads) {
  GsPosterior call{};
  call.task = GS_SECOND_MOMENT;
  call.count = count;
  call.mean = mean;
  call.raw = raw;
  return gs_posterior(dtype, &call, sum, threads);
}

GS_API int gs_batchnorm(int dtype, const GsBatchNorm* b, int threads) {
  if (!gs::is_call(dtype, b)) return GS_BAD_ARGUMENT;
  return gs::guarded([&] { gs::isa().batchnorm(dtype, *b, threads); });
}

GS_API int gs_natural(int dtype, const GsNatural* a, int threads) {
  if (!gs::is_call(dtype, a)) return GS_BAD_ARGUMENT;
  return gs::guarded([&] {
    gs::parallel_for(gs::ceil_div(a->count, gs::NORMALS_PER_TASK), threads, [&](int64_t task) {
      const int64_t from = task * gs::NORMALS_PER_TASK;
      gs::isa().natural(dtype, *a, from, std::min(from + gs::NORMALS_PER_TASK, a->count));
    });
  });
}

GS_API const char* gs_isa(void) { return gs::isa().name; }

GS_API int gs_use_isa(const char* name) {
  if (!name) return GS_BAD_ARGUMENT;
  for (const gs::Isa* isa : gs::KNOWN)
    if (std::strcmp(isa->name, name) == 0 && isa->runs_here()) {
      gs::chosen.store(isa);
      return GS_OK;
    }
  return GS_BAD_ARGUMENT;
}

GS_API void gs_release(void) { gs::release_buffers(); }
