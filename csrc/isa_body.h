// The engine, once per instruction set: GS_ISA_NAMESPACE, GS_BYTES and GS_REGISTERS are set by the
// including file, which also tells the compiler which instructions it may use from here on.

namespace gs {
namespace GS_ISA_NAMESPACE {
namespace {

#include "vec.h"
#include "noise.h"
#include "pack.h"
#include "epilogue.h"
#include "forward.h"
#include "backward_tile.h"
#include "backward.h"
#include "samples.h"
#include "posterior.h"
#include "batchnorm.h"
#include "natural.h"

void forward(const GsGeometry& g, const GsPattern& p, int dtype, const GsForward& f, int threads) {
  const bool dual = f.variance != nullptr;
  if (dtype == GS_FLOAT64) {
    dual ? run_forward<double, true>(g, p, f, threads) : run_forward<double, false>(g, p, f, threads);
  } else {
    dual ? run_forward<float, true>(g, p, f, threads) : run_forward<float, false>(g, p, f, threads);
  }
}

template <class T>
void backward_of(const GsGeometry& g, const GsPattern& p, const GsBackward& b, int threads) {
  const bool dual = b.variance != nullptr, dx = b.dx != nullptr;
  if (dual)
    dx ? run_backward<T, true, true>(g, p, b, threads) : run_backward<T, true, false>(g, p, b, threads);
  else
    dx ? run_backward<T, false, true>(g, p, b, threads) : run_backward<T, false, false>(g, p, b, threads);
}

void backward(const GsGeometry& g, const GsPattern& p, int dtype, const GsBackward& b, int threads) {
  dtype == GS_FLOAT64 ? backward_of<double>(g, p, b, threads) : backward_of<float>(g, p, b, threads);
}

void samples(const GsGeometry& g, const GsPattern& p, int dtype, const GsSamples& s, int threads) {
  dtype == GS_FLOAT64 ? run_samples<double>(g, p, s, threads) : run_samples<float>(g, p, s, threads);
}

void normal(int dtype, uint64_t seed, uint64_t first, int64_t count, void* out) {
  dtype == GS_FLOAT64 ? normals(seed, first, count, static_cast<double*>(out))
                      : normals(seed, first, count, static_cast<float*>(out));
}

void normal_at(int dtype, uint64_t seed, const int64_t* counters, int64_t count, void* out) {
  dtype == GS_FLOAT64 ? normals_at(seed, counters, count, static_cast<double*>(out))
                      : normals_at(seed, counters, count, static_cast<float*>(out));
}

double posterior(int dtype, const GsPosterior& p) {
  const auto run = [&](auto item) {
    using T = decltype(item);
    const T* mean = static_cast<const T*>(p.mean);
    const T* raw = static_cast<const T*>(p.raw);
    T* raw_grad = static_cast<T*>(p.raw_grad);
    switch (p.task) {
      case GS_VARIANCE:
        variances(p.count, raw, static_cast<T*>(p.variance));
        return 0.0;
      case GS_VARIANCE_BACKWARD:
        variances_backward(p.count, raw, static_cast<const T*>(p.dvariance), raw_grad);
        return 0.0;
      case GS_SECOND_MOMENT:
        return second_moment(p.count, mean, raw);
      default:
        return kl(p.count, mean, raw, p.prior, raw_grad);
    }
  };
  return dtype == GS_FLOAT64 ? run(double{}) : run(float{});
}

void batchnorm(int dtype, const GsBatchNorm& b, int threads) {
  const int64_t step = channels_per_task(b);
  const auto run = [&](auto item) {
    using T = decltype(item);
    if (b.evaluates) {
      T* scale = shared_buffer(WEIGHTS).as<T>(b.channels);
      batchnorm_scales<T>(b, scale);
      const int64_t rows = b.batch * b.channels, few = ceil_div(1 << 14, b.size);
      parallel_for(ceil_div(rows, few), threads, [&](int64_t task) {
        batchnorm_rows<T>(b, scale, task * few, std::min(rows, (task + 1) * few));
      });
      return;
    }
    parallel_for(ceil_div(b.channels, step), threads, [&](int64_t task) {
      const int64_t first = task * step, last = std::min(b.channels, first + step);
      b.gradient ? batchnorm_backward<T>(b, first, last) : batchnorm_forward<T>(b, first, last);
    });
  };
  dtype == GS_FLOAT64 ? run(double{}) : run(float{});
}

void natural(int dtype, const GsNatural& a, int64_t from, int64_t to) {
  const auto run = [&](auto item) {
    using T = decltype(item);
    a.decays ? natural_task<T, true>(a, from, to) : natural_task<T, false>(a, from, to);
  };
  dtype == GS_FLOAT64 ? run(double{}) : run(float{});
}

}  // namespace
}  // namespace GS_ISA_NAMESPACE
}  // namespace gs
