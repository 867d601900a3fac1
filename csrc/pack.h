// Between torch's layouts and packed tiles. Included inside the namespace of the instruction set.

// The examples of a tile that exist.
inline int64_t examples_in(const GsGeometry& g, const Plan& plan, int64_t tile) {
  return std::min(plan.examples, g.batch - tile * plan.examples);
}

// ROWS: values[example][channel] with strides -> tile[channel][example], zeros where there is none.
template <class T>
void pack_rows(const T* values, int64_t batch_stride, int64_t channel_stride, int64_t examples,
               int64_t first, int64_t last, int64_t plane, T* tile) {
  if (channel_stride == 1) {
    transpose(values + first, batch_stride, examples, last - first, tile + first * plane, plane);
  } else if (batch_stride == 1) {
    for (int64_t c = first; c < last; ++c)
      std::memcpy(tile + c * plane, values + c * channel_stride, static_cast<size_t>(examples) * sizeof(T));
  } else {
    for (int64_t c = first; c < last; ++c)
      for (int64_t b = 0; b < examples; ++b)
        tile[c * plane + b] = values[b * batch_stride + c * channel_stride];
  }
  if (examples < plane)
    for (int64_t c = first; c < last; ++c)
      std::fill(tile + c * plane + examples, tile + (c + 1) * plane, T(0));
}

// One channel of BATCH: examples' planes [size] at distance `stride` -> vectors [size][lanes].
template <class T>
void gather_lanes(const T* values, int64_t stride, int64_t examples, int64_t size, T* out) {
  constexpr int L = Simd<T>::L;
  if (examples < L) std::fill(out, out + size * L, T(0));
  transpose(values, stride, examples, size, out, L);
}

// One channel of the tile of inputs of a forward pass; the rest of the plane is zero already.
template <class T>
void place_input(const GsGeometry& g, const ForwardPlan& plan, const T* plane, T* tile) {
  const int64_t wide = plan.mode == BATCH ? plan.lanes : 1;
  const int64_t pitch = plan.mode == BATCH ? extent(g, 2) : plan.pitch;
  for (int64_t z = 0; z < g.in[0]; ++z) {
    const int64_t pz = g.pad[0] + z * g.up[0];
    if (pz < 0 || pz >= extent(g, 0)) continue;
    for (int64_t y = 0; y < g.in[1]; ++y) {
      const int64_t py = g.pad[1] + y * g.up[1];
      if (py < 0 || py >= extent(g, 1)) continue;
      T* row = tile + (pz * extent(g, 1) + py) * pitch * wide;
      const T* from = plane + (z * g.in[1] + y) * g.in[2] * wide;
      if (plan.mode == FLAT) {
        std::memcpy(row + g.pad[2], from, static_cast<size_t>(g.in[2]) * sizeof(T));
        continue;
      }
      for (int64_t x = 0; x < g.in[2]; ++x) {
        const int64_t px = g.pad[2] + x * g.up[2];
        if (px >= 0 && px < extent(g, 2)) store(row + px * wide, load(from + x * wide));
      }
    }
  }
}

// One channel of the tile of gradients; the rest of the plane is zero already. With a factor the
// values are multiplied by it.
template <class T>
void place_gradient(const GsGeometry& g, const BackwardPlan& plan, const T* plane, const T* factor,
                    T* tile) {
  const int64_t wide = plan.mode == BATCH ? plan.lanes : 1;
  const int64_t run = g.out[2] * wide;
  for (int64_t z = 0; z < g.out[0]; ++z)
    for (int64_t y = 0; y < g.out[1]; ++y) {
      T* row = tile + (plan.g_place[0] + z) * plan.g_step[0] +
               (plan.g_place[1] + y) * plan.g_step[1] + plan.g_place[2] * plan.g_step[2];
      const int64_t at = (z * g.out[1] + y) * run;
      if (!factor) {
        std::memcpy(row, plane + at, static_cast<size_t>(run) * sizeof(T));
      } else {
        for (int64_t i = 0; i < run; ++i) row[i] = plane[at + i] * factor[at + i];
      }
    }
}

// The same for lanes of examples, both gradients of a pixel side by side: that of the variance is
// `other`, or `other` times that of the mean.
template <class T>
void place_pairs(const GsGeometry& g, const BackwardPlan& plan, const T* plane, const T* other, bool sloped,
                 T* tile) {
  constexpr int L = Simd<T>::L;
  for (int64_t z = 0; z < g.out[0]; ++z)
    for (int64_t y = 0; y < g.out[1]; ++y) {
      T* to = tile + (plan.g_place[0] + z) * plan.g_step[0] + (plan.g_place[1] + y) * plan.g_step[1] +
              plan.g_place[2] * plan.g_step[2];
      for (int64_t x = 0; x < g.out[2]; ++x, plane += L, other += L, to += 2 * L) {
        const auto one = load(plane), two = load(other);
        store(to, one);
        store(to + L, sloped ? one * two : two);
      }
    }
}
