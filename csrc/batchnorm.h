// Batch normalisation over [batch][channel][size], with a residual and a ReLU in the same pass. In
// training statistics, output and gradients come a few channels at a time, so that all passes but the
// first find them in the cache. Included inside the namespace of the instruction set.

// Channels that one task takes: at least a page of neighbouring values per example.
inline int64_t channels_per_task(const GsBatchNorm& b) {
  return std::min(b.channels, ceil_div(1024, b.size));
}

constexpr int64_t ADDS_PER_LANE = 256;  // of a float sum before it goes to double

// N sums over the batch per channel of a task: lanes in T, totals [N][channels] in double. A call of
// term(channel, offset, count, add) gives the N vectors to add for `count` values at an offset.
template <class T, int N, class Term>
void sum_channels(const GsBatchNorm& b, int64_t first, int64_t last, double* total, Term term) {
  using V = typename Simd<T>::V;
  constexpr int L = Simd<T>::L;
  const int64_t channels = last - first, vectors = ceil_div(b.size, L);
  const int64_t examples = std::max<int64_t>(1, ADDS_PER_LANE / vectors);
  T* lanes = local_buffer(SCRATCH).as<T>(channels * N * L);
  std::fill(total, total + N * channels, 0.0);
  for (int64_t start = 0; start < b.batch; start += examples) {
    std::fill(lanes, lanes + channels * N * L, T(0));
    for (int64_t example = start; example < std::min(b.batch, start + examples); ++example)
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t at = (example * b.channels + first + c) * b.size;
        V sum[N], add[N];
        for (int n = 0; n < N; ++n) sum[n] = load(lanes + (c * N + n) * L);
        for (int64_t i = 0; i < b.size; i += L) {
          term(c, at + i, b.size - i, add);
          for (int n = 0; n < N; ++n) sum[n] += add[n];
        }
        for (int n = 0; n < N; ++n) store(lanes + (c * N + n) * L, sum[n]);
      }
    for (int64_t c = 0; c < channels; ++c)
      for (int n = 0; n < N; ++n)
        for (int lane = 0; lane < L; ++lane)
          total[n * channels + c] += static_cast<double>(lanes[(c * N + n) * L + lane]);
  }
}

// The first `count` lanes, zeros beyond.
template <class T>
inline typename Simd<T>::V load_some(const T* p, int64_t count) {
  if (count >= Simd<T>::L) return load(p);
  typename Simd<T>::V v = {};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
template <class T>
inline void store_some(T* p, typename Simd<T>::V v, int64_t count) {
  if (count >= Simd<T>::L) return store(p, v);
  for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}

// Calls fn(channel of the task, offset, count) for all vectors of a task's channels.
template <class T, class F>
inline void each_vector(const GsBatchNorm& b, int64_t first, int64_t last, F fn) {
  for (int64_t example = 0; example < b.batch; ++example)
    for (int64_t c = 0; c < last - first; ++c) {
      const int64_t at = (example * b.channels + first + c) * b.size;
      for (int64_t i = 0; i < b.size; i += Simd<T>::L) fn(c, at + i, b.size - i);
    }
}

// NaN stays NaN, as torch's does.
template <class T>
inline typename Simd<T>::V rectified(typename Simd<T>::V v) {
  const typename Simd<T>::V zero = {};
  return v < zero ? zero : v;
}

// What follows the normalisation of `n` values at an offset.
template <class T>
inline void finish_batchnorm(const GsBatchNorm& b, int64_t at, int64_t n, typename Simd<T>::V v) {
  if (b.residual) v += load_some(static_cast<const T*>(b.residual) + at, n);
  store_some(static_cast<T*>(b.y) + at, b.relu ? rectified<T>(v) : v, n);
}

// Evaluation: rows [first, last) of [batch * channels], given weight / sqrt(variance + eps) [channels].
template <class T>
void batchnorm_rows(const GsBatchNorm& b, const T* scale, int64_t first, int64_t last) {
  const T* x = static_cast<const T*>(b.x);
  for (int64_t row = first; row < last; ++row) {
    const int64_t c = row % b.channels;
    const T mean = static_cast<const T*>(b.mean)[c], bias = static_cast<const T*>(b.bias)[c];
    for (int64_t i = 0; i < b.size; i += Simd<T>::L) {
      const int64_t at = row * b.size + i, n = b.size - i;
      finish_batchnorm<T>(b, at, n, (load_some(x + at, n) - mean) * scale[c] + bias);
    }
  }
}

template <class T>
void batchnorm_scales(const GsBatchNorm& b, T* scale) {
  for (int64_t c = 0; c < b.channels; ++c) {
    const auto of = [&](const void* p) { return static_cast<double>(static_cast<const T*>(p)[c]); };
    scale[c] = static_cast<T>(of(b.weight) / std::sqrt(of(b.variance) + b.eps));
  }
}

template <class T>
void batchnorm_forward(const GsBatchNorm& b, int64_t first, int64_t last) {
  using V = typename Simd<T>::V;
  const T* x = static_cast<const T*>(b.x);
  T* mean = static_cast<T*>(b.mean) + first;
  T* variance = static_cast<T*>(b.variance) + first;
  T* inverse = static_cast<T*>(b.inverse) + first;
  const double count = static_cast<double>(b.batch * b.size);
  const int64_t channels = last - first;
  double* total = local_buffer(CURSOR).as<double>(channels);
  sum_channels<T, 1>(b, first, last, total, [&](int64_t, int64_t at, int64_t n, V* add) {
    add[0] = load_some(x + at, n);
  });
  for (int64_t c = 0; c < channels; ++c) mean[c] = static_cast<T>(total[c] / count);
  sum_channels<T, 1>(b, first, last, total, [&](int64_t c, int64_t at, int64_t n, V* add) {
    V d = load_some(x + at, n) - mean[c];
    for (int64_t lane = n; lane < Simd<T>::L; ++lane) d[lane] = T(0);
    add[0] = d * d;
  });
  T* scale = local_buffer(QUEUE).as<T>(2 * channels);
  for (int64_t c = 0; c < channels; ++c) {
    variance[c] = static_cast<T>(total[c] / count);
    inverse[c] = static_cast<T>(1.0 / std::sqrt(total[c] / count + b.eps));
    scale[c] = static_cast<const T*>(b.weight)[first + c] * inverse[c];
    scale[channels + c] = static_cast<const T*>(b.bias)[first + c];
  }
  each_vector<T>(b, first, last, [&](int64_t c, int64_t at, int64_t n) {
    finish_batchnorm<T>(b, at, n, (load_some(x + at, n) - mean[c]) * scale[c] + scale[channels + c]);
  });
}

// The gradient before the ReLU, `n` values at an offset.
template <class T>
inline typename Simd<T>::V before_relu(const GsBatchNorm& b, int64_t at, int64_t n) {
  const typename Simd<T>::V zero = {}, g = load_some(static_cast<const T*>(b.gradient) + at, n);
  if (!b.relu) return g;
  return load_some(static_cast<const T*>(b.y) + at, n) <= zero ? zero : g;
}

// With g the gradient before the ReLU and z = (x - mean) * inverse: dresidual = g, dbias = sum g,
// dweight = sum g z and dx = weight * inverse * (g - dbias / n - z * dweight / n).
template <class T>
void batchnorm_backward(const GsBatchNorm& b, int64_t first, int64_t last) {
  using V = typename Simd<T>::V;
  const T* x = static_cast<const T*>(b.x);
  const T* mean = static_cast<const T*>(b.mean) + first;
  const T* inverse = static_cast<const T*>(b.inverse) + first;
  T* dx = static_cast<T*>(b.dx);
  T* dresidual = static_cast<T*>(b.dresidual);
  const double count = static_cast<double>(b.batch * b.size);
  const int64_t channels = last - first;
  double* sum = local_buffer(CURSOR).as<double>(2 * channels);
  double* product = sum + channels;
  sum_channels<T, 2>(b, first, last, sum, [&](int64_t c, int64_t at, int64_t n, V* add) {
    add[0] = before_relu<T>(b, at, n);
    add[1] = add[0] * (load_some(x + at, n) - mean[c]);
  });
  T* factor = local_buffer(QUEUE).as<T>(3 * channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double scale = static_cast<double>(static_cast<const T*>(b.weight)[first + c]) *
                         static_cast<double>(inverse[c]);
    const double dweight = product[c] * static_cast<double>(inverse[c]);
    static_cast<T*>(b.dweight)[first + c] = static_cast<T>(dweight);
    static_cast<T*>(b.dbias)[first + c] = static_cast<T>(sum[c]);
    factor[3 * c] = static_cast<T>(scale);
    factor[3 * c + 1] = static_cast<T>(scale * sum[c] / count);
    factor[3 * c + 2] = static_cast<T>(scale * dweight * static_cast<double>(inverse[c]) / count);
  }
  if (!dx && !dresidual) return;
  each_vector<T>(b, first, last, [&](int64_t c, int64_t at, int64_t n) {
    const T* f = factor + 3 * c;
    const V g = before_relu<T>(b, at, n);
    if (dresidual) store_some(dresidual + at, g, n);
    if (dx) store_some(dx + at, g * f[0] - f[1] - (load_some(x + at, n) - mean[c]) * f[2], n);
  });
}
