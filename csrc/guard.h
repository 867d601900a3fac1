// What a caller can get wrong and a kernel would pay for with memory: a missing array, or a shape that
// no layer has. Sizes of arrays are the caller's to check: a pointer does not know its own.
#pragma once
#include <initializer_list>

#include "plan.h"

namespace gs {

constexpr int64_t MOST = int64_t{1} << 31;          // of one number of a shape
constexpr int64_t MOST_VALUES = int64_t{1} << 53;   // of one array: byte offsets stay far from 2^63

// Whether the product of sizes, each in [1, MOST), stays below a limit.
inline bool multiplies(std::initializer_list<int64_t> sizes, int64_t limit) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 1 || size >= MOST || product > limit / size) return false;
    product *= size;
  }
  return true;
}

// The weight alone: of a pattern, whose orders depend on no input.
inline bool is_weight(const GsGeometry* g) {
  if (!g || g->groups < 1 || g->channels < 1 || g->outputs < 1) return false;
  if (g->channels % g->groups != 0 || g->outputs % g->groups != 0) return false;
  for (int d = 0; d < 3; ++d) {
    if (g->stride[d] < 1 || g->dilation[d] < 1 || g->up[d] < 1) return false;
    if (!multiplies({g->kernel[d], g->dilation[d]}, MOST)) return false;
  }
  const int64_t* k = g->kernel;
  return multiplies({g->outputs, g->channels / g->groups, k[0], k[1], k[2]}, MOST) &&
         multiplies({g->channels, g->stride[0], g->stride[1], g->stride[2]}, MOST);
}

inline bool is_shape(const GsGeometry* g) {
  if (!is_weight(g)) return false;
  for (int d = 0; d < 3; ++d) {
    if (g->pad[d] <= -MOST || g->pad[d] >= MOST) return false;
    if (!multiplies({g->out[d], g->stride[d]}, MOST) || !multiplies({g->in[d], g->up[d]}, MOST)) return false;
  }
  return multiplies({g->batch, g->channels, g->in[0], g->in[1], g->in[2]}, MOST_VALUES) &&
         multiplies({g->batch, g->outputs, g->out[0], g->out[1], g->out[2]}, MOST_VALUES);
}

inline bool is_dtype(int dtype) { return dtype == GS_FLOAT32 || dtype == GS_FLOAT64; }

// Whether all of these are there; of no values nothing has to be.
inline bool are_there(int64_t count, std::initializer_list<const void*> arrays) {
  if (count < 0 || count >= MOST_VALUES) return false;
  if (count == 0) return true;
  for (const void* array : arrays)
    if (!array) return false;
  return true;
}

// The ends of an order say whether it is of this shape and of so many weights.
inline bool is_order(const int64_t* ptr, int64_t lines, int64_t nnz) {
  return ptr && ptr[0] == 0 && ptr[lines] == nnz;
}

inline bool has_rows(const GsGeometry& g, const GsPattern* p) {
  return p && are_there(p->nnz, {p->row_cols}) && is_order(p->row_ptr, g.outputs, p->nnz);
}

inline bool has_columns(const GsGeometry& g, const GsPattern* p) {
  return p && are_there(p->nnz, {p->col_rows}) && is_order(p->col_ptr, g.channels * phases(g), p->nnz);
}

inline bool is_call(const GsGeometry* g, const GsPattern* p, int dtype, const GsForward* f) {
  return is_shape(g) && f && is_dtype(dtype) && has_rows(*g, p) && f->x && f->y &&
         are_there(p->nnz, {f->mean}) && (f->variance || !f->has_seed) &&
         (!f->y_by_feature || has_no_space(*g));
}

inline bool is_call(const GsGeometry* g, const GsPattern* p, int dtype, const GsBackward* b) {
  return is_shape(g) && b && is_dtype(dtype) && has_columns(*g, p) && b->x && b->gradient &&
         are_there(p->nnz, {b->mean, b->dmean}) &&
         (!b->variance || ((b->slope || b->gradient2) && are_there(p->nnz, {b->dvariance}))) &&
         (!b->dx_by_feature || has_no_space(*g));
}

inline bool is_call(const GsGeometry* g, const GsPattern* p, int dtype, const GsSamples* s) {
  return is_shape(g) && s && is_dtype(dtype) && has_rows(*g, p) && s->x && s->y && s->seeds &&
         multiplies({s->samples, s->rows, g->outputs}, MOST_VALUES) &&
         are_there(p->nnz, {s->mean, s->deviation});
}

inline bool is_call(int dtype, const GsPosterior* p, const double* sum) {
  if (!p || !sum || !is_dtype(dtype) || !are_there(p->count, {p->raw})) return false;
  switch (p->task) {
    case GS_VARIANCE: return are_there(p->count, {p->variance});
    case GS_VARIANCE_BACKWARD: return are_there(p->count, {p->dvariance, p->raw_grad});
    case GS_KL:
    case GS_SECOND_MOMENT: return are_there(p->count, {p->mean});
    default: return false;
  }
}

inline bool is_call(int dtype, const GsBatchNorm* b) {
  if (!b || !is_dtype(dtype) || !multiplies({b->batch, b->channels, b->size}, MOST_VALUES)) return false;
  if (!b->x || !b->weight || !b->mean) return false;
  if (b->evaluates) return b->bias && b->variance && b->y;
  if (b->gradient) return b->inverse && b->dweight && b->dbias && (!b->relu || b->y);
  return b->bias && b->y && b->variance && b->inverse;
}

inline bool is_call(int dtype, const GsNatural* a) {
  if (!a || !is_dtype(dtype) || !are_there(a->count, {a->theta})) return false;
  switch (a->task) {
    case GS_NATURAL_DRAW: return are_there(a->count, {a->mean, a->eps, a->curvature});
    case GS_NATURAL_ADAM:
    case GS_NATURAL_IVON:
      return are_there(a->count, {a->curvature, a->momentum, a->gradient}) &&
             (a->product || a->eps || a->count == 0) &&
             (a->task == GS_NATURAL_IVON || are_there(a->count, {a->square}));
    case GS_PLAIN_ADAM: return are_there(a->count, {a->momentum, a->square, a->gradient});
    default: return false;
  }
}

}  // namespace gs
