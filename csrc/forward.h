// The forward pass. Included inside the namespace of the instruction set.

// NP vectors of outputs of one row: a few registers of sums, one pass over the row's weights. The
// sums begin at *start, or without it at what m and v hold.
template <class T, int NP, bool DUAL, Reads READS>
inline void forward_tile(const T* x, const int32_t* position, const int32_t* offset, const T* mean,
                         const T* variance, int64_t begin, int64_t end, const T* start, T* m, T* v) {
  using V = typename Simd<T>::V;
  constexpr int L = Simd<T>::L;
  V sum[NP], square[NP];
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) {
    sum[n] = start ? splat(*start) : load(m + n * L);
    if (DUAL) square[n] = start ? V{} : load(v + n * L);
  }
  const T* origin = x + position[0];
  for (int64_t k = begin; k < end; ++k) {
    const T* at = origin + offset[k];
    prefetch_tile<NP, READS>(origin + offset[k + 1 < end ? k + 1 : k]);
    const V w = splat(mean[k]);
    const V s = DUAL ? splat(variance[k]) : w;
#pragma GCC unroll 8
    for (int n = 0; n < NP; ++n) {
      V value = load(READS == SCATTERED ? at + (position[n] - position[0]) : at + n * L);
      pin(value);
      sum[n] += w * value;
      if (DUAL) square[n] += s * (value * value);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) {
    store(m + n * L, sum[n]);
    if (DUAL) store(v + n * L, square[n]);
  }
}

// The tile function for n vectors, 1 <= n <= MOST.
template <class T, bool DUAL, int... N>
inline auto forward_tile_of(int64_t n, Reads reads, std::integer_sequence<int, N...>) {
  using Tile = decltype(&forward_tile<T, 1, DUAL, ALIGNED>);
  static constexpr Tile tiles[3][sizeof...(N)] = {{&forward_tile<T, N + 1, DUAL, SCATTERED>...},
                                                  {&forward_tile<T, N + 1, DUAL, ALIGNED>...},
                                                  {&forward_tile<T, N + 1, DUAL, UNALIGNED>...}};
  return tiles[reads][n - 1];
}

// Positions [from, to) in tiles of nearly equal size.
template <class T, int MOST, bool DUAL>
inline void forward_span(Mode mode, int64_t from, int64_t to, const T* x, const int32_t* position,
                         const int32_t* offset, const T* mean, const T* variance, int64_t begin,
                         int64_t end, const T* start, T* m, T* v) {
  constexpr int L = Simd<T>::L;
  constexpr auto sizes = std::make_integer_sequence<int, MOST>();
  for (int64_t p = from, left = ceil_div(to - from, MOST); left > 0; --left) {
    const int64_t n = ceil_div(to - p, left);
    const Reads reads = reads_of(mode, position[p + n - 1] - position[p] == (n - 1) * L);
    const auto tile = forward_tile_of<T, DUAL>(n, reads, sizes);
    tile(x, position + p, offset, mean, variance, begin, end, start, m + p * L, v + p * L);
    p += n;
  }
}

// Packs channels [first, last) of a tile; planes with padding must be zero outside the input.
template <class T>
void pack_input(const ForwardCall<T>& c, int64_t tile, int64_t first, int64_t last, T* packed) {
  const GsGeometry& g = c.g;
  const int64_t examples = examples_in(g, c.plan, tile);
  const T* x = static_cast<const T*>(c.call.x);
  if (c.plan.mode == ROWS) {
    pack_rows(x + tile * c.plan.examples * c.call.x_batch_stride, c.call.x_batch_stride,
              c.call.x_channel_stride, examples, first, last, c.plan.plane, packed);
    return;
  }
  T* lanes = c.plan.mode == BATCH ? local_buffer(NOISE).as<T>(c.volume_in * c.plan.lanes) : nullptr;
  for (int64_t channel = first; channel < last; ++channel) {
    const T* from = x + (tile * c.plan.examples * g.channels + channel) * c.volume_in;
    if (c.plan.mode == BATCH) {
      gather_lanes(from, g.channels * c.volume_in, examples, c.volume_in, lanes);
      from = lanes;
    }
    place_input(g, c.plan, from, packed + channel * c.plan.plane);
  }
}

// What registers sum at once. Dual: two sums per vector and a few to spare; else eight are enough to
// hide latencies.
constexpr int most_vectors(bool dual) { return dual ? GS_REGISTERS / 4 : 8; }

// Rows [first, last) of one group for one tile.
template <class T, bool DUAL>
void forward_rows(const ForwardCall<T>& c, int64_t tile, int64_t first, int64_t last,
                  const T* packed) {
  constexpr int L = Simd<T>::L, MOST = most_vectors(DUAL);
  const GsGeometry& g = c.g;
  const int64_t positions = static_cast<int64_t>(c.plan.position.size());
  const int64_t per_group = g.channels / g.groups, blocks = c.plan.blocks;
  const int64_t group = first / (g.outputs / g.groups), rows = last - first;
  const T* x = packed + group * per_group * c.plan.plane;
  const T* bias = static_cast<const T*>(c.call.bias);
  const int64_t size = positions * L;
  T* m = local_buffer(SCRATCH).as<T>((DUAL ? 2 : 1) * rows * size);
  T* v = DUAL ? m + rows * size : nullptr;
  const T zero = 0;
  for (int64_t from = 0; from < positions; from += c.plan.block_positions) {
    const int64_t to = std::min(positions, from + c.plan.block_positions);
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t* limits = c.order.bound + (first + i) * (blocks + 1) + block;
        const T* start = block > 0 ? nullptr : bias ? bias + first + i : &zero;
        if (limits[0] == limits[1] && !start) continue;
        forward_span<T, MOST, DUAL>(c.plan.mode, from, to, x, c.plan.position.data(), c.order.offset,
                                    c.order.mean, c.order.variance, limits[0], limits[1], start, m + i * size,
                                    DUAL ? v + i * size : m);
      }
  }
  store_rows<T, DUAL>(c, tile, first, last, m, v);
}

// Rows that one task sums at once: enough for whole blocks of noise, few enough for the cache.
inline int64_t rows_at_once(const GsGeometry& g, const ForwardPlan& plan, int64_t item) {
  const int64_t per_row = static_cast<int64_t>(plan.position.size()) * plan.lanes * item * 2;
  const int64_t bytes = slab_bytes(plan.lanes, item);
  const int64_t fit = (plan.blocks > 1 ? 4 * bytes : bytes / 4) / per_row;
  const int64_t least = ceil_div(64, volume(g.out));
  if (plan.mode == ROWS && plan.blocks == 1) return std::min(g.outputs, least);  // sums that stay in L1
  return std::min(g.outputs / g.groups, round_up(std::max(fit, least), least));
}

constexpr int64_t WEIGHTS_PER_TASK = 1 << 14;

template <class T, bool DUAL>
ForwardOrder<T> order_rows(const GsGeometry& g, const GsPattern& pattern, const GsForward& call,
                           const ForwardPlan& plan, int threads) {
  const T* mean = static_cast<const T*>(call.mean);
  const T* variance = static_cast<const T*>(call.variance);
  T* ordered = pattern.row_perm ? shared_buffer(WEIGHTS).as<T>(2 * pattern.nnz) : nullptr;
  const ForwardOrder<T> to{shared_buffer(BOUNDS).as<int64_t>(g.outputs * (plan.blocks + 1)),
                           shared_buffer(OFFSETS).as<int32_t>(pattern.nnz), ordered ? ordered : mean,
                           ordered ? ordered + pattern.nnz : variance};
  const int64_t tasks = std::min(g.outputs, pattern.nnz / WEIGHTS_PER_TASK + 1);
  parallel_for(tasks, threads, [&](int64_t task) {
    const int64_t last = (task + 1) * g.outputs / tasks;
    for (int64_t row = task * g.outputs / tasks; row < last; ++row) {
      const int64_t base = row * pattern.row_cols_step, stop = pattern.row_ptr[row + 1];
      int64_t k = pattern.row_ptr[row];
      int64_t* bound = to.bound + row * (plan.blocks + 1);
      for (int64_t block = 0; block < plan.blocks; ++block) {
        *bound++ = k;
        const int64_t limit = base + (block + 1) * plan.block_channels * volume(g.kernel);
        for (; k < stop && (block + 1 == plan.blocks || pattern.row_cols[k] < limit); ++k) {
          to.offset[k] = plan.column[static_cast<size_t>(pattern.row_cols[k] - base)];
          if (!ordered) continue;
          ordered[k] = mean[pattern.row_perm[k]];
          if (DUAL) ordered[pattern.nnz + k] = variance[pattern.row_perm[k]];
        }
      }
      *bound = stop;
    }
  });
  return to;
}

template <class T, bool DUAL>
void run_forward(const GsGeometry& g, const GsPattern& pattern, const GsForward& call, int threads) {
  const ForwardPlan plan = forward_plan(g, Simd<T>::L, sizeof(T), most_vectors(DUAL));
  const ForwardOrder<T> order = order_rows<T, DUAL>(g, pattern, call, plan, threads);
  const ForwardCall<T> c{g, call, plan, order, volume(g.in), volume(g.out)};
  const int64_t tile_size = g.channels * plan.plane, per_group = g.outputs / g.groups;
  int64_t chunk = rows_at_once(g, plan, sizeof(T));
  if (plan.tiles >= 4 * threads || plan.tiles % threads == 0) {
    // Each task packs its own tiles, which then are in its core's cache.
    const int64_t tasks = std::min<int64_t>(plan.tiles, 4 * threads);
    parallel_for(tasks, threads, [&](int64_t task) {
      T* packed = local_buffer(TILE_X).as<T>(tile_size);
      if (plan.mode != ROWS) std::fill(packed, packed + tile_size, T(0));
      const int64_t to = (task + 1) * plan.tiles / tasks;
      for (int64_t tile = task * plan.tiles / tasks; tile < to; ++tile) {
        pack_input(c, tile, 0, g.channels, packed);
        for (int64_t start = 0; start < g.outputs; start += per_group)
          for (int64_t row = start; row < start + per_group; row += chunk)
            forward_rows<T, DUAL>(c, tile, row, std::min(start + per_group, row + chunk), packed);
      }
    });
    return;
  }
  T* packed = shared_buffer(PACKED_X).as<T>(plan.tiles * tile_size);
  const int64_t parts = std::min<int64_t>(g.channels, 2 * threads);
  parallel_for(plan.tiles * parts, threads, [&](int64_t task) {
    const int64_t tile = task / parts, part = task % parts;
    const int64_t first = part * g.channels / parts, last = (part + 1) * g.channels / parts;
    T* to = packed + tile * tile_size;
    if (plan.mode != ROWS) std::fill(to + first * plan.plane, to + last * plan.plane, T(0));
    pack_input(c, tile, first, last, to);
  });
  // Chunks small enough that every thread has some, and multiples of a vector where they are many.
  const int64_t wanted = ceil_div(per_group * g.groups * plan.tiles, 2 * threads);
  chunk = std::max<int64_t>(1, std::min(chunk, std::min(per_group, round_up(wanted, 16))));
  const int64_t chunks = ceil_div(per_group, chunk);
  parallel_for(plan.tiles * g.groups * chunks, threads, [&](int64_t task) {
    const int64_t tile = task / (g.groups * chunks), rest = task % (g.groups * chunks);
    const int64_t start = rest / chunks * per_group, row = start + rest % chunks * chunk;
    forward_rows<T, DUAL>(c, tile, row, std::min(start + per_group, row + chunk),
                          packed + tile * tile_size);
  });
}
