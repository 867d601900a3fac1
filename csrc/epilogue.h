// From sums to outputs: root, noise, and the way back to torch's order. Included inside the namespace of
// the instruction set.

// The pattern in forward order as the loops read it, made once per call.
template <class T>
struct ForwardOrder {
  int64_t* bound;   // [outputs][blocks + 1] of the weights that meet a block of channels
  int32_t* offset;  // [nnz] of the inputs that a weight meets
  const T* mean;
  const T* variance;
};

// Everything that a call's tasks read.
template <class T>
struct ForwardCall {
  const GsGeometry& g;
  const GsForward& call;
  const ForwardPlan& plan;
  const ForwardOrder<T>& order;
  int64_t volume_in, volume_out;
};

// y, and slope or spread, of `count` consecutive elements from sums m (and v).
template <class T>
inline void finish(bool noisy, int64_t count, const T* m, const T* v, const T* eps, T* y, T* second) {
  using V = typename Simd<T>::V;
  constexpr int L = Simd<T>::L;
  if (!noisy) {
    std::memcpy(y, m, static_cast<size_t>(count) * sizeof(T));
    if (v) std::memcpy(second, v, static_cast<size_t>(count) * sizeof(T));
    return;
  }
  int64_t i = 0;
  for (; i + L <= count; i += L) {
    const V variance = load(v + i), noise = load(eps + i), inverse = inverse_root<T>(variance);
    store(y + i, load(m + i) + variance * inverse * noise);
    // No variance: no noise, and no gradient to it.
    if (second) store(second + i, T(0.5) * noise * inverse);
  }
  for (; i < count; ++i) {
    const T inverse = v[i] > T(0) ? T(1) / std::sqrt(v[i]) : T(0);
    y[i] = m[i] + v[i] * inverse * eps[i];
    if (second) second[i] = T(0.5) * eps[i] * inverse;
  }
}

// The slope of a layer without space, which nobody but the backward pass reads: groups of SLOPE_GROUP examples
// (the last may have fewer), in each [output][example]. By feature over the whole batch, neighbouring outputs of a
// tile would lie pages apart.
struct SlopeGroup {
  int64_t at, step;  // of one example and output 0; from output to output
};
inline SlopeGroup slope_group(const GsGeometry& g, int64_t example) {
  const int64_t start = example / SLOPE_GROUP * SLOPE_GROUP;
  return {start * g.outputs + example - start, std::min(SLOPE_GROUP, g.batch - start)};
}

// A block of rows and L examples, in floats: each output is touched once. Root, noise, slope, transpose and store
// of L rows at a time are in registers.
template <bool SLOPE>
inline void store_noisy_block(const ForwardCall<float>& c, int64_t start, int64_t first, const float* m,
                              const float* v, int64_t size, const float* eps) {
  using V = Simd<float>::V;
  constexpr int L = Simd<float>::L;
  const GsGeometry& g = c.g;
  const SlopeGroup group = slope_group(g, start);
  float* y = static_cast<float*>(c.call.y);
  float* slope = SLOPE ? static_cast<float*>(c.call.second) + group.at + first * group.step : nullptr;
  for (int64_t i = 0; i < BLOCK; i += L) {
    V out[L];
#pragma GCC unroll 16
    for (int n = 0; n < L; ++n) {
      const V variance = load(v), noise = load(eps), inverse = inverse_root<float>(variance);
      out[n] = load(m) + variance * inverse * noise;
      // No variance: no noise, and no gradient to it.
      if (SLOPE) store(slope, 0.5f * noise * inverse);
      m += size;
      v += size;
      eps += L;
      slope += SLOPE ? group.step : 0;
    }
    if (c.call.y_by_feature) {
      for (int n = 0; n < L; ++n) store(y + (first + i + n) * g.batch + start, out[n]);
      continue;
    }
    transpose_block<float>(out);
    float* to = y + start * g.outputs + first + i;
#pragma GCC unroll 16
    for (int n = 0; n < L; ++n) store(to + n * g.outputs, out[n]);
  }
}

// The same for fewer examples: one by one, with the bits of `finish`.
inline void store_noisy_rest(const ForwardCall<float>& c, int64_t start, int64_t examples, int64_t first,
                             const float* m, const float* v, int64_t size, const float* eps) {
  constexpr int L = Simd<float>::L;
  const GsGeometry& g = c.g;
  const SlopeGroup group = slope_group(g, start);
  float* y = static_cast<float*>(c.call.y);
  float* slope = static_cast<float*>(c.call.second);
  float out[L];
  for (int64_t i = 0, row = first; i < BLOCK; ++i, ++row) {
    finish(true, examples, m + i * size, v + i * size, eps + i * L, out,
           slope ? slope + group.at + row * group.step : nullptr);
    for (int64_t n = 0; n < examples; ++n)
      y[c.call.y_by_feature ? row * g.batch + start + n : (start + n) * g.outputs + row] = out[n];
  }
}

// Rows [first, last), whole blocks of noise: it is drawn in the order of the sums, [row][example].
inline void store_noisy(const ForwardCall<float>& c, int64_t start, int64_t examples, int64_t first, int64_t last,
                        const float* m, const float* v, int64_t size) {
  constexpr int L = Simd<float>::L;
  const Keys keys = keys_of(c.call.seed);
  float* eps = local_buffer(NOISE).as<float>(BLOCK * L);
  const int64_t blocks = c.g.outputs / BLOCK;
  const auto store_block = c.call.second ? &store_noisy_block<true> : &store_noisy_block<false>;
  for (int64_t row = first; row < last; row += BLOCK, m += BLOCK * size, v += BLOCK * size)
    for (int64_t part = 0; part < examples; part += L) {
      const int64_t at = start + part;
      normal_columns(keys, static_cast<uint64_t>(at * blocks + row / BLOCK), static_cast<uint64_t>(blocks), eps);
      if (part + L <= examples)
        store_block(c, at, row, m + part, v + part, size, eps);
      else
        store_noisy_rest(c, at, examples - part, row, m + part, v + part, size, eps);
    }
}

// A layer without space: sums [row][example] of one tile to y [example][output] or [output][example].
// Noise is counted along an example's outputs and meets the sums in their own order.
template <class T, bool DUAL>
void store_matrix(const ForwardCall<T>& c, int64_t tile, int64_t first, int64_t last, T* m, T* v) {
  constexpr int L = Simd<T>::L;
  const GsGeometry& g = c.g;
  const int64_t rows = last - first, size = static_cast<int64_t>(c.plan.position.size()) * L;
  const int64_t examples = examples_in(g, c.plan, tile), start = tile * c.plan.examples;
  const bool noisy = DUAL && c.call.has_seed, by_feature = c.call.y_by_feature != 0;
  T* y = static_cast<T*>(c.call.y);
  T* second = static_cast<T*>(c.call.second);
  if constexpr (DUAL && std::is_same<T, float>::value) {
    if (noisy && g.outputs % BLOCK == 0 && first % BLOCK == 0 && rows % BLOCK == 0) {
      return store_noisy(c, start, examples, first, last, m, v, size);
    }
  }
  const int64_t step = round_up(rows, BLOCK);  // normals come in whole blocks
  T* drawn = local_buffer(NOISE).as<T>(noisy ? L * step + rows * size : 0);
  T* eps = drawn + L * step;
  for (int64_t part = 0; noisy && part < examples; part += L) {
    const int64_t here = std::min<int64_t>(L, examples - part);
    for (int64_t lane = 0; lane < here; ++lane)
      normals(c.call.seed, static_cast<uint64_t>((start + part + lane) * g.outputs + first), rows,
              drawn + lane * step);
    transpose(drawn, step, here, rows, eps + part, size);
  }
  for (int64_t i = 0; (noisy || by_feature) && i < rows; ++i) {
    const int64_t at = (first + i) * g.batch + start;
    if (!noisy) {
      finish(false, examples, m + i * size, DUAL ? v + i * size : nullptr, eps, y + at, second ? second + at : nullptr);
      continue;
    }
    for (int64_t part = 0; part < examples; part += SLOPE_GROUP) {
      const SlopeGroup group = slope_group(g, start + part);
      const int64_t from = i * size + part;
      finish(true, std::min(SLOPE_GROUP, examples - part), m + from, v + from, eps + from,
             by_feature ? y + at + part : m + from, second ? second + group.at + (first + i) * group.step : nullptr);
    }
  }
  if (by_feature) return;
  transpose(m, size, rows, examples, y + start * g.outputs + first, g.outputs);
  if (DUAL && !noisy) transpose(v, size, rows, examples, second + start * g.outputs + first, g.outputs);
}

// From sums [row][position][lane] to the output in torch's order, with noise.
template <class T, bool DUAL>
void store_rows(const ForwardCall<T>& c, int64_t tile, int64_t first, int64_t last, T* m, T* v) {
  constexpr int L = Simd<T>::L;
  if (c.plan.mode == ROWS) return store_matrix<T, DUAL>(c, tile, first, last, m, v);
  const GsGeometry& g = c.g;
  const int64_t rows = last - first, size = static_cast<int64_t>(c.plan.position.size()) * L;
  const int64_t per_row = c.volume_out, count = rows * per_row;
  const int64_t examples = examples_in(g, c.plan, tile);
  T* y = static_cast<T*>(c.call.y);
  T* second = static_cast<T*>(c.call.second);
  const bool noisy = DUAL && c.call.has_seed;
  if (!DUAL && c.plan.mode == BATCH) {
    const int64_t stride = g.outputs * per_row;
    transpose(m, L, count, examples, y + tile * c.plan.examples * stride + first * per_row, stride);
    return;
  }
  // Room for the normals of one example, and where lanes are examples for their sums.
  const int64_t wide = c.plan.mode == FLAT ? 0 : count * L;
  T* eps = local_buffer(NOISE).as<T>(round_up(count, 64) + 2 * wide);
  if (c.plan.mode == FLAT) {
    // Normals come in whole blocks: of one row where it is long, so that they stay in L1.
    const int64_t batch = per_row >= 512 ? 1 : rows, depth = size / g.out[0];
    for (int64_t start = 0; start < rows; start += batch) {
      const int64_t at = (tile * g.outputs + first + start) * per_row;
      if (noisy) normals(c.call.seed, static_cast<uint64_t>(at), batch * per_row, eps);
      int64_t to = 0;
      for (int64_t i = start; i < start + batch; ++i)
        for (int64_t z = 0; z < g.out[0]; ++z)
          for (int64_t row = 0; row < g.out[1]; ++row, to += g.out[2]) {
            const int64_t from = i * size + z * depth + row * c.plan.pitch;
            finish(noisy, g.out[2], m + from, DUAL ? v + from : nullptr, eps + to, y + at + to,
                   second ? second + at + to : nullptr);
          }
    }
    return;
  }
  T* tm = eps + round_up(count, 64);
  T* tv = DUAL ? tm + wide : nullptr;
  // Lanes are examples: [row * position][lane] -> [lane][row * position].
  transpose(m, L, count, examples, tm, count);
  if (DUAL) transpose(v, L, count, examples, tv, count);
  for (int64_t lane = 0; lane < examples; ++lane) {
    const int64_t at = ((tile * c.plan.examples + lane) * g.outputs + first) * per_row;
    if (noisy) normals(c.call.seed, static_cast<uint64_t>(at), count, eps);
    finish(noisy, count, tm + lane * count, DUAL ? tv + lane * count : nullptr, eps, y + at,
           second ? second + at : nullptr);
  }
}
