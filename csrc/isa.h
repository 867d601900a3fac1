// What every instruction set provides.
#pragma once
#include "gossamer.h"

namespace gs {

struct Isa {
  const char* name;
  bool (*runs_here)();
  void (*forward)(const GsGeometry&, const GsPattern&, int dtype, const GsForward&, int threads);
  void (*backward)(const GsGeometry&, const GsPattern&, int dtype, const GsBackward&, int threads);
  void (*samples)(const GsGeometry&, const GsPattern&, int dtype, const GsSamples&, int threads);
  void (*normal)(int dtype, uint64_t seed, uint64_t first, int64_t count, void* out);
  void (*normal_at)(int dtype, uint64_t seed, const int64_t* counters, int64_t count, void* out);
  double (*posterior)(int dtype, const GsPosterior&);
  void (*batchnorm)(int dtype, const GsBatchNorm&, int threads);
  void (*natural)(int dtype, const GsNatural&, int64_t from, int64_t to);
};

extern const Isa generic, avx2, avx512, neon;

}  // namespace gs
