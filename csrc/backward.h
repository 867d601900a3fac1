// The backward pass: dx, dmean and dvariance, column by column of the pattern. Included inside the
// namespace of the instruction set.

// The pattern in backward order as the loops read it, made once per call.
template <class T>
struct BackwardOrder {
  int64_t blocks;   // of rows
  int64_t* bound;   // [columns][blocks + 1] of the weights that meet a block
  int32_t* offset;  // [nnz] of the gradients that a weight meets
  T* weight;        // [nnz] means, or means and variances in turn
};

template <class T>
struct BackwardCall {
  const GsGeometry& g;
  const GsPattern& pattern;
  const GsBackward& call;
  const BackwardPlan& plan;
  const BackwardOrder<T>& order;
  int64_t volume_in, volume_out;
  int64_t x_size, g_size;  // of a tile; g_size of both gradients
  int64_t distance;        // from a vector of gradients of the mean to that of the variance
};

// Both gradients of a layer without space: [output][examples] of the mean, then of the variance.
template <class T>
void pack_both(const BackwardCall<T>& c, int64_t start, int64_t examples, int64_t first, int64_t last,
               T* packed) {
  using V = typename Simd<T>::V;
  constexpr int L = Simd<T>::L;
  const int64_t batch_step = c.call.g_batch_stride, channel_step = c.call.g_channel_stride, plane = c.plan.g_plane;
  const T* gradient = static_cast<const T*>(c.call.gradient);
  const T* slope = static_cast<const T*>(c.call.slope);
  const T* gradient2 = static_cast<const T*>(c.call.gradient2);
  // Values of L examples and L channels, a vector per channel.
  const auto read = [](const T* from, int64_t along, int64_t across, V* to) {
    if (along == 1) {
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) to[n] = load(from + n * across);
    } else {
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) to[n] = load(from + n * along);
      transpose_block<T>(to);
    }
  };
  // The same where there are fewer of either, or both lie apart; zeros where there is no example.
  const auto gather = [](const T* from, int64_t along, int64_t across, int64_t rows, int64_t columns, V* to) {
    for (int64_t n = 0; n < columns; ++n) {
      to[n] = V{};
      for (int64_t b = 0; b < rows; ++b) to[n][b] = from[b * along + n * across];
    }
  };
  for (int64_t b = 0; b < examples; b += L) {
    const int64_t rows = std::min<int64_t>(L, examples - b);
    const SlopeGroup group = slope_group(c.g, start + b);
    const T* one_at = gradient + (start + b) * batch_step;
    const T* two_at = slope ? slope + group.at : gradient2 + (start + b) * c.g.outputs;
    const int64_t along = slope ? 1 : c.g.outputs, across = slope ? group.step : 1;
    for (int64_t o = first; o < last; o += L) {
      const int64_t columns = std::min<int64_t>(L, last - o);
      V one[L], two[L];
      T* to = packed + o * plane + b;
      if (rows == L && columns == L && (batch_step == 1 || channel_step == 1)) {
        if (channel_step == 1 && b + 2 * L <= examples) prefetch_rows<T>(one_at + L * batch_step + o, batch_step, o);
        read(one_at + o * channel_step, batch_step, channel_step, one);
        read(two_at + o * across, along, across, two);
#pragma GCC unroll 16
        for (int n = 0; n < L; ++n) {
          store(to + n * plane, one[n]);
          store(to + n * plane + c.distance, slope ? one[n] * two[n] : two[n]);
        }
        continue;
      }
      gather(one_at + o * channel_step, batch_step, channel_step, rows, columns, one);
      gather(two_at + o * across, along, across, rows, columns, two);
      for (int64_t n = 0; n < columns; ++n) {
        store(to + n * plane, one[n]);
        store(to + n * plane + c.distance, slope ? one[n] * two[n] : two[n]);
      }
    }
  }
  const int64_t filled = round_up(examples, L);
  if (filled < plane)
    for (int64_t o = first; o < last; ++o)
      for (T* row : {packed + o * plane, packed + c.distance + o * plane})
        std::fill(row + filled, row + plane, T(0));
}

template <class T, bool DUAL>
void pack_gradient(const BackwardCall<T>& c, int64_t tile, int64_t first, int64_t last, T* packed) {
  const GsGeometry& g = c.g;
  const BackwardPlan& plan = c.plan;
  const int64_t examples = examples_in(g, plan, tile), start = tile * plan.examples;
  const T* gradient = static_cast<const T*>(c.call.gradient);
  const T* slope = static_cast<const T*>(c.call.slope);
  const T* gradient2 = static_cast<const T*>(c.call.gradient2);
  T* packed2 = packed + c.distance;
  if (plan.mode == ROWS && DUAL) {
    pack_both(c, start, examples, first, last, packed);
    return;
  }
  if (plan.mode == ROWS) {
    pack_rows(gradient + start * c.call.g_batch_stride, c.call.g_batch_stride,
              c.call.g_channel_stride, examples, first, last, plan.g_plane, packed);
    return;
  }
  const int64_t wide = plan.lanes * c.volume_out;
  T* lanes = plan.mode == BATCH ? local_buffer(NOISE).as<T>(2 * wide) : nullptr;
  for (int64_t channel = first; channel < last; ++channel) {
    const int64_t at = (start * g.outputs + channel) * c.volume_out;
    const T* one = gradient + at;
    const T* two = !DUAL ? nullptr : slope ? slope + at : gradient2 + at;
    if (plan.mode == BATCH) {
      gather_lanes(one, g.outputs * c.volume_out, examples, c.volume_out, lanes);
      one = lanes;
      if (DUAL) {
        gather_lanes(two, g.outputs * c.volume_out, examples, c.volume_out, lanes + wide);
        two = lanes + wide;
      }
    }
    if (plan.paired) {
      place_pairs<T>(g, plan, one, two, slope != nullptr, packed + channel * plan.g_plane);
      continue;
    }
    place_gradient<T>(g, plan, one, nullptr, packed + channel * plan.g_plane);
    if (DUAL && slope) place_gradient<T>(g, plan, one, two, packed2 + channel * plan.g_plane);
    if (DUAL && !slope) place_gradient<T>(g, plan, two, nullptr, packed2 + channel * plan.g_plane);
  }
}

template <class T>
void pack_values(const BackwardCall<T>& c, int64_t tile, int64_t first, int64_t last, T* packed) {
  const GsGeometry& g = c.g;
  const BackwardPlan& plan = c.plan;
  const int64_t examples = examples_in(g, plan, tile), start = tile * plan.examples;
  const T* x = static_cast<const T*>(c.call.x);
  if (plan.mode == ROWS) {
    pack_rows(x + start * c.call.x_batch_stride, c.call.x_batch_stride, c.call.x_channel_stride,
              examples, first, last, plan.x_plane, packed);
    return;
  }
  for (int64_t channel = first; channel < last; ++channel) {
    const T* from = x + (start * g.channels + channel) * c.volume_in;
    T* to = packed + channel * plan.x_plane;
    if (plan.mode == BATCH) {
      gather_lanes(from, g.channels * c.volume_in, examples, c.volume_in, to);
      continue;
    }
    // Zero between the rows: what is read there counts for nothing.
    const int64_t depth = plan.x_plane / g.in[0];
    for (int64_t z = 0; z < g.in[0]; ++z) {
      T* flat = to + z * depth;
      for (int64_t y = 0; y < g.in[1]; ++y) {
        std::memcpy(flat + y * plan.pitch, from + (z * g.in[1] + y) * g.in[2],
                    static_cast<size_t>(g.in[2]) * sizeof(T));
        const int64_t end = y + 1 < g.in[1] ? (y + 1) * plan.pitch : depth;
        std::fill(flat + y * plan.pitch + g.in[2], flat + end, T(0));
      }
    }
  }
}

// dx of channels [first, last) from [channel][position][lane].
template <class T>
void unpack_dx(const BackwardCall<T>& c, int64_t tile, int64_t first, int64_t last, const T* from) {
  const GsGeometry& g = c.g;
  const BackwardPlan& plan = c.plan;
  const int64_t examples = examples_in(g, plan, tile), start = tile * plan.examples;
  T* dx = static_cast<T*>(c.call.dx);
  if (plan.mode == ROWS && c.call.dx_by_feature) {
    for (int64_t channel = first; channel < last; ++channel, from += plan.x_plane)
      std::memcpy(dx + channel * g.batch + start, from, static_cast<size_t>(examples) * sizeof(T));
    return;
  }
  if (plan.mode == ROWS) {
    transpose(from, plan.x_plane, last - first, examples, dx + start * g.channels + first,
              g.channels);
    return;
  }
  for (int64_t channel = first; channel < last; ++channel, from += plan.x_plane) {
    T* to = dx + (start * g.channels + channel) * c.volume_in;
    if (plan.mode == BATCH) {
      transpose(from, plan.lanes, c.volume_in, examples, to, g.channels * c.volume_in);
      continue;
    }
    const int64_t depth = plan.x_plane / g.in[0];
    for (int64_t z = 0; z < g.in[0]; ++z)
      for (int64_t y = 0; y < g.in[1]; ++y)
        std::memcpy(to + (z * g.in[1] + y) * g.in[2], from + z * depth + y * plan.pitch,
                    static_cast<size_t>(g.in[2]) * sizeof(T));
  }
}

// One pass over channels [first, last).
template <class T, bool DUAL, Share SHARE, bool DX>
void backward_blocks(const BackwardCall<T>& c, int64_t first, int64_t last, const T* x, const T* g,
                     int64_t widest, T* dm, T* dv, T* out, T* queue, T* dmean, T* dvariance) {
  constexpr int L = Simd<T>::L;
  constexpr bool BOTH = DUAL && SHARE == ALL;
  // Registers: an input and a sum, or two of each, per vector, and four.
  constexpr int MOST = std::min(8, (GS_REGISTERS - 4) / (BOTH ? 4 : 2));
  const BackwardPlan& plan = c.plan;
  const int64_t kinds = static_cast<int64_t>(plan.phase.size()), blocks = c.order.blocks;
  for (int64_t from = 0; from * L < widest; from += plan.block_positions)
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t i = 0; i < last - first; ++i)
        for (int64_t kind = 0; kind < kinds; ++kind) {
          const int64_t column = i * kinds + kind;
          const int64_t* limits = c.order.bound + (first * kinds + column) * (blocks + 1) + block;
          const int64_t begin = limits[0], end = limits[1];
          const Phase& phase = plan.phase[static_cast<size_t>(kind)];
          const int64_t to = std::min<int64_t>(static_cast<int64_t>(phase.x.size()), from + plan.block_positions);
          const DxSums<T> dx{block == 0, block + 1 == blocks, dm + column * widest, dv + column * widest,
                             out + i * plan.x_plane};
          if (from >= to || (begin == end && !(DX && (dx.opens || dx.closes)))) continue;
          backward_span<T, MOST, DUAL, SHARE, DX>(plan.mode, from, to, x + (first + i) * plan.x_plane,
                                                  phase.x.data(), g, phase.g.data(), c.distance,
                                                  c.order.offset, c.order.weight, begin, end, queue, dx);
          reduce_queue<T, BOTH>(queue, end - begin, (SHARE == OF_VARIANCE ? dvariance : dmean) + begin,
                                dvariance + begin);
        }
}

// Channels [first, last) of one tile: adds to dmean and dvariance (backward order), writes dx.
template <class T, bool DUAL, bool DX>
void backward_channels(const BackwardCall<T>& c, int64_t tile, int64_t first, int64_t last,
                       const T* x, const T* g, T* dmean, T* dvariance) {
  constexpr int L = Simd<T>::L;
  const BackwardPlan& plan = c.plan;
  const int64_t kinds = static_cast<int64_t>(plan.phase.size());
  const int64_t channels = last - first, blocks = c.order.blocks;
  const int64_t* bound = c.order.bound + first * kinds * (blocks + 1);
  int64_t widest = 0, longest = 0;
  for (const Phase& phase : plan.phase)
    widest = std::max(widest, static_cast<int64_t>(phase.x.size()) * L);
  for (int64_t i = 0; i < channels * kinds; ++i)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t* limits = bound + i * (blocks + 1) + block;
      longest = std::max(longest, limits[1] - limits[0]);
    }
  // Sums of dx per column; and dx itself in the order of x.
  const int64_t sums = DX ? channels * kinds * widest * (DUAL ? 2 : 1) : 0;
  T* dm = local_buffer(SCRATCH).as<T>(sums + (DX ? channels * plan.x_plane : 0));
  T* dv = DUAL ? dm + channels * kinds * widest : dm;
  T* out = dm + sums;
  if (DX && !plan.covers_input) std::fill(out, out + channels * plan.x_plane, T(0));
  T* queue = local_buffer(QUEUE).as<T>((DUAL ? 2 : 1) * L * round_up(longest, L));
  const auto pass = [&](auto share) {
    backward_blocks<T, DUAL, share(), DX>(c, first, last, x, g, widest, dm, dv, out, queue, dmean, dvariance);
  };
  if constexpr (DUAL) {
    if (!plan.paired) {
      pass(std::integral_constant<Share, OF_MEAN>());
      pass(std::integral_constant<Share, OF_VARIANCE>());
    } else {
      pass(std::integral_constant<Share, ALL>());
    }
  } else {
    pass(std::integral_constant<Share, ALL>());
  }
  if (DX) unpack_dx(c, tile, first, last, out);
}

// Channels that one task takes at once: few where the sums of a column are long.
inline int64_t channels_at_once(const GsGeometry& g, const BackwardPlan& plan, int64_t item) {
  const int64_t per_group = g.channels / g.groups;
  const int64_t outputs = g.outputs / g.groups;
  const bool blocked = plan.block_rows < outputs;
  const int64_t bytes = slab_bytes(plan.lanes, item);
  const int64_t fit = (blocked ? 4 * bytes : bytes / 4) / (3 * plan.x_plane * item);
  return std::min(per_group, std::max<int64_t>(fit, 16));
}

template <class T, bool DUAL>
BackwardOrder<T> order_columns(const GsGeometry& g, const GsPattern& pattern, const GsBackward& call,
                               const BackwardPlan& plan, int threads) {
  const int64_t kinds = static_cast<int64_t>(plan.phase.size()), taps = volume(g.kernel);
  const int64_t outputs = g.outputs / g.groups, per_group = g.channels / g.groups * kinds;
  const int64_t columns = g.channels * kinds, blocks = ceil_div(outputs, plan.block_rows);
  const BackwardOrder<T> to{blocks, shared_buffer(BOUNDS).as<int64_t>(columns * (blocks + 1)),
                            shared_buffer(OFFSETS).as<int32_t>(pattern.nnz),
                            shared_buffer(WEIGHTS).as<T>((DUAL ? 2 : 1) * pattern.nnz)};
  const T* mean = static_cast<const T*>(call.mean);
  const T* variance = static_cast<const T*>(call.variance);
  const int64_t tasks = std::min(columns, pattern.nnz / WEIGHTS_PER_TASK + 1);
  parallel_for(tasks, threads, [&](int64_t task) {
    const int64_t last = (task + 1) * columns / tasks;
    for (int64_t column = task * columns / tasks; column < last; ++column) {
      const int64_t base = column / per_group * outputs * taps, stop = pattern.col_ptr[column + 1];
      int64_t k = pattern.col_ptr[column];
      int64_t* bound = to.bound + column * (blocks + 1);
      for (int64_t block = 0; block < blocks; ++block) {
        *bound++ = k;
        const int64_t limit = base + (block + 1) * plan.block_rows * taps;
        for (; k < stop && (block + 1 == blocks || pattern.col_rows[k] < limit); ++k) {
          const int64_t from = pattern.col_perm ? pattern.col_perm[k] : k;
          to.offset[k] = plan.row[static_cast<size_t>(pattern.col_rows[k])];
          to.weight[DUAL ? 2 * k : k] = mean[from];
          if (DUAL) to.weight[2 * k + 1] = variance[from];
        }
      }
      *bound = stop;
    }
  });
  return to;
}

template <class T, bool DUAL, bool DX>
void run_backward(const GsGeometry& g, const GsPattern& pattern, const GsBackward& call,
                  int threads) {
  const BackwardPlan plan = backward_plan(g, Simd<T>::L, sizeof(T), DUAL, pattern.nnz);
  const int64_t nnz = pattern.nnz, groups = plan.groups_of_tiles;
  const BackwardOrder<T> order = order_columns<T, DUAL>(g, pattern, call, plan, threads);
  // Sums of gradients in backward order, one set per group of tiles.
  T* sums = shared_buffer(PARTIAL).as<T>(2 * nnz * groups);
  const BackwardCall<T> c{g,
                          pattern,
                          call,
                          plan,
                          order,
                          volume(g.in),
                          volume(g.out),
                          g.channels * plan.x_plane,
                          g.outputs * plan.g_plane * (DUAL && !plan.paired ? 2 : 1),
                          plan.paired ? Simd<T>::L : g.outputs * plan.g_plane};
  const int64_t g_all = c.g_size, per_group = g.channels / g.groups;
  int64_t chunk = channels_at_once(g, plan, sizeof(T));
  // Who does what may depend on the number of threads, the order of a weight's sums may not: tiles of
  // a group follow each other, and groups are added up at the end.
  if (groups >= threads) {
    parallel_for(groups, threads, [&](int64_t task) {
      T* x = local_buffer(TILE_X).as<T>(c.x_size);
      T* gradient = local_buffer(TILE_G).as<T>(g_all);
      if (plan.mode != ROWS) std::fill(gradient, gradient + g_all, T(0));
      T* dmean = sums + task * 2 * nnz;
      std::fill(dmean, dmean + 2 * nnz, T(0));
      const int64_t to = (task + 1) * plan.tiles / groups;
      for (int64_t tile = task * plan.tiles / groups; tile < to; ++tile) {
        pack_values(c, tile, 0, g.channels, x);
        pack_gradient<T, DUAL>(c, tile, 0, g.outputs, gradient);
        for (int64_t start = 0; start < g.channels; start += per_group)
          for (int64_t channel = start; channel < start + per_group; channel += chunk)
            backward_channels<T, DUAL, DX>(c, tile, channel,
                                           std::min(start + per_group, channel + chunk), x,
                                           gradient, dmean, dmean + nnz);
      }
    });
  } else {
    parallel_for(groups, threads, [&](int64_t group) {
      std::fill(sums + group * 2 * nnz, sums + (group + 1) * 2 * nnz, T(0));
    });
    const int64_t wanted = ceil_div(g.channels, 2 * threads);
    chunk = std::max<int64_t>(1, std::min(chunk, std::min(per_group, round_up(wanted, 8))));
    const int64_t chunks = ceil_div(per_group, chunk), at_once = std::min<int64_t>(plan.tiles, 4);
    T* x = shared_buffer(PACKED_X).as<T>(at_once * c.x_size);
    T* gradient = shared_buffer(PACKED_G).as<T>(at_once * g_all);
    if (plan.mode != ROWS) std::fill(gradient, gradient + at_once * g_all, T(0));
    for (int64_t start = 0; start < plan.tiles; start += at_once) {
      const int64_t here = std::min(at_once, plan.tiles - start), parts = 2 * threads;
      parallel_for(here * parts, threads, [&](int64_t task) {
        const int64_t tile = task / parts, part = task % parts;
        pack_values(c, start + tile, part * g.channels / parts, (part + 1) * g.channels / parts,
                    x + tile * c.x_size);
        pack_gradient<T, DUAL>(c, start + tile, part * g.outputs / parts,
                               (part + 1) * g.outputs / parts, gradient + tile * g_all);
      });
      parallel_for(g.groups * chunks, threads, [&](int64_t task) {
        const int64_t begin = task / chunks * per_group, channel = begin + task % chunks * chunk;
        for (int64_t tile = 0; tile < here; ++tile) {
          const int64_t group = ((start + tile + 1) * groups - 1) / plan.tiles;
          T* dmean = sums + group * 2 * nnz;
          backward_channels<T, DUAL, DX>(c, start + tile, channel,
                                         std::min(begin + per_group, channel + chunk),
                                         x + tile * c.x_size, gradient + tile * g_all, dmean,
                                         dmean + nnz);
        }
      });
    }
  }
  T* dmean = static_cast<T*>(call.dmean);
  T* dvariance = static_cast<T*>(call.dvariance);
  parallel_for(ceil_div(nnz, WEIGHTS_PER_TASK), threads, [&](int64_t task) {
    const int64_t from = task * WEIGHTS_PER_TASK, last = std::min(nnz, from + WEIGHTS_PER_TASK);
    for (int array = 0; array < (DUAL ? 2 : 1); ++array) {
      T* sum = sums + array * nnz;
      T* to = array ? dvariance : dmean;
      for (int64_t group = 1; group < groups; ++group)
        for (int64_t k = from; k < last; ++k) sum[k] += sum[group * 2 * nnz + k];
      // One array at a time: scattered writes wait for their cache lines.
      if (pattern.col_perm) {
        for (int64_t k = from; k < last; ++k) to[pattern.col_perm[k]] = sum[k];
      } else {
        std::copy(sum + from, sum + last, to + from);
      }
    }
  });
}
