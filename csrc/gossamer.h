// The C ABI of the native engine: plain pointers and sizes, nothing of torch or Python.
//
// One idea serves every layer. A linear map with a sparse weight is a sum of shifted inputs,
//   y[o, p] = sum over kept weights k of row o:  w[k] * X[offset(k) + position(p)],
// where X is the input packed so that neighbouring lanes of a vector are independent outputs. Linear
// layers, convolutions of 1-3 dimensions and transposed convolutions differ in their tables of
// offsets and positions only (see plan.h).
#pragma once
#include <cstdint>

#if defined(__GNUC__)
#define GS_API extern "C" __attribute__((visibility("default")))
#else
#define GS_API extern "C"
#endif

// The shape of one call. Spatial arrays are (depth, height, width); missing dimensions are 1.
struct GsGeometry {
  int64_t batch;
  int64_t channels;  // input channels, all groups
  int64_t outputs;   // output channels, all groups
  int64_t groups;
  int64_t in[3];
  int64_t out[3];
  int64_t kernel[3];
  int64_t stride[3];
  int64_t dilation[3];
  int64_t up[3];   // distance between neighbouring inputs: the stride of a transposed convolution
  int64_t pad[3];  // place of the first input in the padded input; negative crops
};

// The kept weights, in two orders. Forward order: by output row; backward order: by input column,
// where a column is an input channel and a phase of the stride (see pattern.cpp).
struct GsPattern {
  int64_t nnz;
  const int64_t* row_ptr;      // [outputs + 1]
  const int32_t* row_cols;     // [nnz] channel-in-group * taps + tap, plus row * row_cols_step
  int64_t row_cols_step;       // what row_cols grows by per row: > 0 where it is the flat index
  const int32_t* row_perm;     // [nnz] place in the value vectors; null where the order is theirs
  const int64_t* col_ptr;      // [channels * phases + 1]
  const int32_t* col_rows;     // [nnz] output channel * taps + tap
  const int32_t* col_perm;     // [nnz] or null, as row_perm
};

enum GsDtype { GS_FLOAT32 = 0, GS_FLOAT64 = 1 };
// A batch of at least one; threads below one count as one. Missing arrays and shapes that no layer has
// are GS_BAD_ARGUMENT (guard.h). Sizes of arrays are not known here: they are the caller's to check.
enum GsStatus { GS_OK = 0, GS_NO_MEMORY = 1, GS_TOO_LARGE = 2, GS_BAD_ARGUMENT = 3 };

// y = W x + b with noise. What is null decides what is computed:
//   variance null:            y = mean x + b
//   variance, no seed:        y = mean x + b and spread = variance x^2 (moments)
//   variance and seed:        y = mean x + b + sqrt(variance x^2) * eps, slope = eps / (2 sqrt(..))
// x has strides (batch, channel) for a layer without space, else is contiguous. y is contiguous; of a
// layer without space it may lie by feature, [outputs][batch], and spread with it. The slope of such a
// layer lies in groups of examples, [outputs][examples] each (epilogue.h): nobody but the backward pass reads it.
struct GsForward {
  const void* x;
  int64_t x_batch_stride, x_channel_stride;
  const void* mean;
  const void* variance;
  const void* bias;
  void* y;
  void* second;  // slope, or spread; null where it is not wanted
  int64_t has_seed;
  uint64_t seed;
  int64_t y_by_feature;
};
GS_API int gs_forward(const GsGeometry*, const GsPattern*, int dtype, const GsForward*, int threads);

// Gradients of the same map. gradient2 is the gradient of the variance output: given (moments), or
// gradient * slope where slope is given (local noise), or absent (deterministic).
struct GsBackward {
  const void* x;
  int64_t x_batch_stride, x_channel_stride;
  const void* mean;
  const void* variance;
  const void* gradient;
  int64_t g_batch_stride, g_channel_stride;
  const void* slope;      // as the forward pass wrote it
  const void* gradient2;  // contiguous
  void* dx;               // null where it is not wanted
  void* dmean;
  void* dvariance;
  int64_t dx_by_feature;  // only of a layer without space
};
GS_API int gs_backward(const GsGeometry*, const GsPattern*, int dtype, const GsBackward*,
                       int threads);

// y[s, b] = W_s x[s, b] + bias for all samples s and rows b, where
// W_s = mean + deviation * normals(seeds[s]).
// Not for transposed convolutions. geometry.batch is not read; y is contiguous, samples first.
struct GsSamples {
  int64_t samples, rows;
  const void* x;  // pixels contiguous; the stride of the samples is 0 where they share their input
  int64_t x_sample_stride, x_row_stride, x_channel_stride;
  const void* mean;
  const void* deviation;
  const uint64_t* seeds;
  const void* bias;
  void* y;
};
GS_API int gs_samples(const GsGeometry*, const GsPattern*, int dtype, const GsSamples*, int threads);

// The backward order of a pattern, by counting: O(nnz + columns).
struct GsPatternOut {
  int64_t* row_ptr;
  int32_t* row_cols;  // written for a transposed convolution only, as row_perm
  int32_t* row_perm;
  int64_t* col_ptr;
  int32_t* col_rows;
  int32_t* col_perm;  // written for all others
};
GS_API int gs_pattern(const GsGeometry*, int transposed, int64_t nnz, const int32_t* indices,
                      const GsPatternOut*);
GS_API int64_t gs_phases(const GsGeometry*);

// Standard normals of the counters first, first+1, ... (or of counters[i]) under a seed.
GS_API int gs_normal(int dtype, uint64_t seed, uint64_t first, int64_t count, void* out,
                     int threads);
GS_API int gs_normal_at(int dtype, uint64_t seed, const int64_t* counters, int64_t count, void* out,
                        int threads);

// The Gaussian posterior N(mean, softplus(raw)^2) of every kept weight, prior N(0, prior^2).
//   GS_VARIANCE           variance[i] = softplus(raw[i])^2
//   GS_VARIANCE_BACKWARD  raw_grad[i] = dvariance[i] * 2 softplus(raw[i]) sigmoid(raw[i])
//   GS_KL                 *sum = sum of the KL divergences; unless null, raw_grad: its gradient
//   GS_SECOND_MOMENT      *sum = sum of mean[i]^2 + softplus(raw[i])^2
enum GsPosteriorTask { GS_VARIANCE, GS_VARIANCE_BACKWARD, GS_KL, GS_SECOND_MOMENT };
struct GsPosterior {
  int64_t task;
  int64_t count;
  const void* mean;
  const void* raw;
  const void* dvariance;
  void* variance;
  void* raw_grad;
  double prior;
};
GS_API int gs_posterior(int dtype, const GsPosterior*, double* sum, int threads);
// GS_SECOND_MOMENT under a name of its own, so that a library without the task is told from this one.
GS_API int gs_second_moment(int dtype, int64_t count, const void* mean, const void* raw, double* sum,
                            int threads);

// Batch normalisation of contiguous x [batch][channels][size], and what follows it in residual
// networks: y = normalised x (+ residual, unless null), rectified if `relu`.
//   training   (gradient null): y, mean, variance (biased) and inverse = 1 / sqrt(variance + eps)
//   evaluation (`evaluates`):   y by the mean and variance that are given
//   backward   (gradient):      dx (or null), dweight, dbias and dresidual (or null) from x, mean and
//                               inverse, and from y if `relu`
struct GsBatchNorm {
  int64_t batch, channels, size;
  int64_t relu, evaluates;
  double eps;
  const void* x;
  const void* weight;
  const void* bias;
  const void* residual;
  const void* gradient;
  void* y;
  void* mean;
  void* variance;
  void* inverse;
  void* dx;
  void* dweight;
  void* dbias;
  void* dresidual;
};
GS_API int gs_batchnorm(int dtype, const GsBatchNorm*, int threads);

// Natural-gradient variational inference on `count` weights with the posterior
// N(theta, 1 / (size * (curvature + decay))); see natural.h.
//   GS_NATURAL_DRAW  mean = theta, eps = normals(seed, first ...), theta += eps * std
//   GS_NATURAL_ADAM  curvature from product, or from eps * gradient where it is null; theta by Adam's rule
//   GS_NATURAL_IVON  the same, theta by the natural gradient, at most max_step std far
//   GS_PLAIN_ADAM    theta by Adam's rule, without posterior and prior
// Shares of the new in running averages: new_gradient = 1 - beta1, and so on. lr has Adam's correction
// of the momentum in it; scale corrects the root of `square`, or under IVON the momentum.
enum GsNaturalTask { GS_NATURAL_DRAW, GS_NATURAL_ADAM, GS_NATURAL_IVON, GS_PLAIN_ADAM };
struct GsNatural {
  int64_t task;
  int64_t count;
  uint64_t seed, first;
  double size, decay, lr, new_gradient, new_square, new_curvature, scale, max_step;
  void* theta;
  void* mean;
  void* eps;
  void* curvature;
  void* momentum;
  void* square;
  const void* gradient;
  const void* product;
  const void* decays;  // a decay per weight instead of the common one, or null
};
GS_API int gs_natural(int dtype, const GsNatural*, int threads);

GS_API const char* gs_isa(void);           // the instruction set in use
GS_API int gs_use_isa(const char* name);   // "generic", "avx2", "avx512", "neon"; for tests
GS_API void gs_release(void);              // give the calling thread's workspace back
