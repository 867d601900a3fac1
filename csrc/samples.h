// Many posterior samples in one pass. Included inside the namespace of the instruction set.
//
// Sample s has weights of its own, mean + std * normals(seed[s]), so lanes are samples: a kept weight
// is a vector of its values in L samples, and every vector of sums has L samples of one output. The
// weights are drawn where they are used, once each, and never exist all at once.
//   X[channel][row][padded pixel][sample],  W[kept weight][sample],  sums[output][row][pixel][sample]

constexpr int64_t SAMPLED_BYTES = 128 * 1024;  // of weights that one task holds, beside their normals
constexpr int64_t SAMPLES_SLAB = 320 * 1024;   // of the tile that a block of positions reads
constexpr int64_t SAMPLES_BLOCK = 16;          // vectors of positions per block, at least

struct SamplesPlan {
  int64_t plane;                  // values of one channel in the tile, all rows
  int64_t row_plane;              // of one row in it
  std::vector<int32_t> position;  // [rows * pixels] of an output vector
  std::vector<int32_t> column;    // [channels per group * taps]
  int64_t block_positions, block_channels;
};

inline SamplesPlan samples_plan(const GsGeometry& g, int64_t rows, int64_t lanes, int64_t item) {
  SamplesPlan plan;
  const int64_t step[3] = {extent(g, 1) * extent(g, 2) * lanes, extent(g, 2) * lanes, lanes};
  plan.row_plane = extent(g, 0) * step[0];
  plan.plane = rows * plan.row_plane;
  const int64_t per_group = g.channels / g.groups;
  narrow(g.channels * plan.plane);
  int64_t o[3], span = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (o[0] = 0; o[0] < g.out[0]; ++o[0])
      for (o[1] = 0; o[1] < g.out[1]; ++o[1])
        for (o[2] = 0; o[2] < g.out[2]; ++o[2]) {
          int64_t at = row * plan.row_plane;
          for (int d = 0; d < 3; ++d) at += o[d] * g.stride[d] * step[d];
          plan.position.push_back(narrow(at));
        }
  for (int64_t c = 0; c < per_group; ++c)
    for (int64_t z = 0; z < g.kernel[0]; ++z)
      for (int64_t y = 0; y < g.kernel[1]; ++y)
        for (int64_t x = 0; x < g.kernel[2]; ++x)
          plan.column.push_back(narrow(c * plan.plane + z * g.dilation[0] * step[0] +
                                       y * g.dilation[1] * step[1] + x * g.dilation[2] * step[2]));
  for (int d = 0; d < 3; ++d) span += (g.kernel[d] - 1) * g.dilation[d] * step[d];
  // The part of the tile that a block of positions reads is meant to stay in L2.
  const int64_t positions = static_cast<int64_t>(plan.position.size());
  const int64_t per_position = std::max<int64_t>(plan.plane / positions, 1);
  const int64_t fit = (SAMPLES_SLAB / (per_group * item) - span) / per_position;
  plan.block_positions = std::min(positions, std::max(fit, SAMPLES_BLOCK));
  const int64_t slab = plan.block_positions * per_position + span;
  plan.block_channels = std::min(
      per_group, std::max<int64_t>(SAMPLES_SLAB / (slab * item), ceil_div(8, volume(g.kernel))));
  return plan;
}

template <class T>
struct SamplesCall {
  const GsGeometry& g;
  const GsPattern& pattern;
  const GsSamples& call;
  const SamplesPlan& plan;
  int64_t first, samples;  // of this block of lanes
};

// Channels [first, last) of the tile, for all rows; what lies outside the input is zero already.
template <class T>
void pack_samples(const SamplesCall<T>& c, int64_t first, int64_t last, T* packed) {
  constexpr int L = Simd<T>::L;
  const GsGeometry& g = c.g;
  const GsSamples& call = c.call;
  const int64_t size = volume(g.in);
  const T* x = static_cast<const T*>(call.x) + c.first * call.x_sample_stride;
  T* lanes = local_buffer(NOISE).as<T>(size * L);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* from = x + row * call.x_row_stride;
    if (has_no_space(g) && call.x_channel_stride == 1) {
      transpose(from + first, call.x_sample_stride, c.samples, last - first,
                packed + first * c.plan.plane + row * L, c.plan.plane);
      continue;
    }
    for (int64_t channel = first; channel < last; ++channel) {
      if (c.samples < L) std::fill(lanes, lanes + size * L, T(0));
      transpose(from + channel * call.x_channel_stride, call.x_sample_stride, c.samples, size, lanes,
                L);
      T* to = packed + channel * c.plan.plane + row * c.plan.row_plane;
      const T* pixel = lanes;
      for (int64_t z = 0; z < g.in[0]; ++z)
        for (int64_t y = 0; y < g.in[1]; ++y)
          for (int64_t i = 0; i < g.in[2]; ++i, pixel += L) {
            const int64_t pz = z + g.pad[0], py = y + g.pad[1], px = i + g.pad[2];
            if (pz < 0 || py < 0 || px < 0 || pz >= extent(g, 0) || py >= extent(g, 1) ||
                px >= extent(g, 2))
              continue;
            store(to + ((pz * extent(g, 1) + py) * extent(g, 2) + px) * L, load(pixel));
          }
    }
  }
}

// Weights [begin, end) of all samples: W[k - begin][sample], zero where there is no sample.
template <class T>
void draw_weights(const SamplesCall<T>& c, int64_t begin, int64_t end, T* normal, T* w) {
  constexpr int L = Simd<T>::L;
  const int64_t count = end - begin;
  const T* mean = static_cast<const T*>(c.call.mean) + begin;
  const T* deviation = static_cast<const T*>(c.call.deviation) + begin;
  if (c.samples < L) std::fill(w, w + count * L, T(0));
  for (int64_t s = 0; s < c.samples; ++s) {
    T* drawn = normal + s * count;
    normals(c.call.seeds[c.first + s], static_cast<uint64_t>(begin), count, drawn);
    for (int64_t k = 0; k < count; ++k) drawn[k] = mean[k] + deviation[k] * drawn[k];
  }
  transpose(normal, count, c.samples, count, w, L);
}

// NP vectors of sums of one output channel: one pass over its weights.
template <class T, int NP>
inline void samples_tile(const T* x, const int32_t* position, const int32_t* cols, int64_t base,
                         const int32_t* column, const T* w, int64_t count, T* sums) {
  using V = typename Simd<T>::V;
  constexpr int L = Simd<T>::L;
  V sum[NP];
  const T* origin[NP];
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) {
    sum[n] = load(sums + n * L);
    origin[n] = x + position[n];
  }
  for (int64_t k = 0; k < count; ++k) {
    const V weight = load(w + k * L);
    const int64_t at = column[cols[k] - base];
#pragma GCC unroll 8
    for (int n = 0; n < NP; ++n) sum[n] += weight * load(origin[n] + at);
  }
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) store(sums + n * L, sum[n]);
}

template <class T, int... N>
inline auto samples_tile_of(int64_t n, std::integer_sequence<int, N...>) {
  using Tile = decltype(&samples_tile<T, 1>);
  static constexpr Tile tiles[] = {&samples_tile<T, N + 1>...};
  return tiles[n - 1];
}

// sums[output][row][pixel][sample] of outputs [first, last) -> y[sample][row][output][pixel].
template <class T>
void store_samples(const SamplesCall<T>& c, int64_t first, int64_t last, const T* sums) {
  constexpr int L = Simd<T>::L;
  const int64_t pixels = volume(c.g.out), rows = c.call.rows, outputs = last - first;
  const int64_t per_sample = rows * c.g.outputs * pixels;
  T* y = static_cast<T*>(c.call.y) + c.first * per_sample + first * pixels;
  for (int64_t row = 0; row < rows; ++row, y += c.g.outputs * pixels) {
    const T* from = sums + row * pixels * L;
    if (rows == 1 || pixels == 1) {
      transpose(from, rows * L, outputs * pixels, c.samples, y, per_sample);
      continue;
    }
    for (int64_t o = 0; o < outputs; ++o)
      transpose(from + o * rows * pixels * L, L, pixels, c.samples, y + o * pixels, per_sample);
  }
}

// Output channels [first, last) of one group.
template <class T>
void samples_rows(const SamplesCall<T>& c, int64_t first, int64_t last, const T* packed) {
  constexpr int L = Simd<T>::L, MOST = 8;
  constexpr auto sizes = std::make_integer_sequence<int, MOST>();
  const GsGeometry& g = c.g;
  const GsPattern& pattern = c.pattern;
  const int64_t positions = static_cast<int64_t>(c.plan.position.size()), size = positions * L;
  const int64_t per_group = g.channels / g.groups, taps = volume(g.kernel);
  const int64_t group = first / (g.outputs / g.groups), rows = last - first;
  const T* x = packed + group * per_group * c.plan.plane;
  const T* bias = static_cast<const T*>(c.call.bias);
  const int64_t begin = pattern.row_ptr[first], count = pattern.row_ptr[last] - begin;
  T* w = local_buffer(TILE_X).as<T>(2 * count * L);
  draw_weights(c, begin, begin + count, w + count * L, w);
  T* sums = local_buffer(SCRATCH).as<T>(rows * size);
  for (int64_t i = 0; i < rows; ++i)
    std::fill(sums + i * size, sums + (i + 1) * size, bias ? bias[first + i] : T(0));
  int64_t* cursor = local_buffer(CURSOR).as<int64_t>(rows);
  for (int64_t from = 0; from < positions; from += c.plan.block_positions) {
    const int64_t to = std::min(positions, from + c.plan.block_positions);
    for (int64_t i = 0; i < rows; ++i) cursor[i] = pattern.row_ptr[first + i];
    for (int64_t channel = 0; channel < per_group; channel += c.plan.block_channels) {
      const int64_t limit = std::min(per_group, channel + c.plan.block_channels) * taps;
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t base = (first + i) * pattern.row_cols_step;
        const int64_t start = cursor[i], stop = pattern.row_ptr[first + i + 1];
        int64_t end = start;
        while (end < stop && pattern.row_cols[end] - base < limit) ++end;
        cursor[i] = end;
        if (start == end) continue;
        for (int64_t p = from, left = ceil_div(to - from, MOST); left > 0; --left) {
          const int64_t n = ceil_div(to - p, left);
          samples_tile_of<T>(n, sizes)(x, c.plan.position.data() + p, pattern.row_cols + start, base,
                                       c.plan.column.data(), w + (start - begin) * L, end - start,
                                       sums + i * size + p * L);
          p += n;
        }
      }
    }
  }
  store_samples(c, first, last, sums);
}

// Bounds of the tasks: output channels of one group whose weights and sums fit in the cache.
template <class T>
std::vector<int64_t> sample_tasks(const GsGeometry& g, const GsPattern& pattern, int64_t positions,
                                  int threads) {
  constexpr int64_t L = Simd<T>::L, item = sizeof(T);
  const int64_t per_group = g.outputs / g.groups;
  const int64_t most_rows = std::max<int64_t>(1, 2 * SAMPLES_SLAB / (positions * L * item));
  const int64_t share = ceil_div(pattern.nnz, 4 * threads);
  const int64_t most_weights = std::min<int64_t>(SAMPLED_BYTES / (L * item), std::max<int64_t>(share, 64));
  std::vector<int64_t> bounds{0};
  for (int64_t row = 1; row < g.outputs; ++row) {
    const int64_t first = bounds.back();
    if (row % per_group == 0 || row - first >= most_rows ||
        pattern.row_ptr[row + 1] - pattern.row_ptr[first] > most_weights)
      bounds.push_back(row);
  }
  bounds.push_back(g.outputs);
  return bounds;
}

template <class T>
void run_samples(const GsGeometry& g, const GsPattern& pattern, const GsSamples& call, int threads) {
  constexpr int L = Simd<T>::L;
  const SamplesPlan plan = samples_plan(g, call.rows, L, sizeof(T));
  const int64_t positions = static_cast<int64_t>(plan.position.size());
  const std::vector<int64_t> bounds = sample_tasks<T>(g, pattern, positions, threads);
  T* packed = shared_buffer(PACKED_X).as<T>(g.channels * plan.plane);
  std::fill(packed, packed + g.channels * plan.plane, T(0));
  const int64_t parts = std::min<int64_t>(g.channels, 2 * threads);
  for (int64_t first = 0; first < call.samples; first += L) {
    const SamplesCall<T> c{g, pattern, call, plan, first, std::min<int64_t>(L, call.samples - first)};
    // An input that all samples share is packed once; a later block of lanes has no more of them.
    if (first == 0 || call.x_sample_stride != 0)
      parallel_for(parts, threads, [&](int64_t part) {
        pack_samples(c, part * g.channels / parts, (part + 1) * g.channels / parts, packed);
      });
    parallel_for(static_cast<int64_t>(bounds.size()) - 1, threads, [&](int64_t task) {
      samples_rows(c, bounds[static_cast<size_t>(task)], bounds[static_cast<size_t>(task) + 1], packed);
    });
  }
}
