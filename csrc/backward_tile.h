// The inner loops of the backward pass: one column of the pattern and a few vectors of its inputs.
// Included inside the namespace of the instruction set.

// What a pass over the weights of a column sums up: all there is, or with two gradients one of them.
// Of gradients that lie side by side both are read at once; otherwise a pass for each has twice as
// many vectors in registers and half as much to keep in the cache.
enum Share { ALL, OF_MEAN, OF_VARIANCE };

// Where the sums of dx of one column are: [position][lane], and dx in the order of x.
template <class T>
struct DxSums {
  bool opens, closes;
  T *m, *v, *out;
};

// One weight and NP vectors of gradients: adds weight * gradient to the sums of dx, and gradient *
// factor to the vector of partial sums of the weight's own gradient. FIRST: it holds nothing yet.
template <class T, int NP, bool DX, Reads READS, bool FIRST, int STEP>
inline void add_products(const T* at, const int32_t* g_at, T weight, const typename Simd<T>::V* factor,
                         typename Simd<T>::V* sum, T* slot) {
  using V = typename Simd<T>::V;
  V own = {};
  if (!FIRST) own = load(slot);
  const V w = splat(weight);
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) {
    V gradient = load(READS == SCATTERED ? at + (g_at[n] - g_at[0]) : at + n * STEP);
    pin(gradient);
    if (DX) sum[n] += w * gradient;
    own += gradient * factor[n];
  }
  store(slot, own);
}

// NP vectors of inputs of one column. queue[k] keeps the vectors of partial sums of weight k's own
// gradients; they are added up once per block (reduce_queue).
// Sums of dx live in registers and, between blocks of rows, in dm and dv: the block that opens a
// column starts them from zero, the one that closes it makes dx of them, once they are all there.
template <class T, int NP, bool DUAL, Share SHARE, bool DX, Reads READS, bool FIRST>
inline void backward_tile(const T* x, const int32_t* x_at, const T* g, const int32_t* g_at,
                          int64_t distance, const int32_t* offset, const T* weight, int64_t begin,
                          int64_t end, T* queue, const DxSums<T>& dx, int64_t p) {
  using V = typename Simd<T>::V;
  constexpr int L = Simd<T>::L;
  constexpr bool BOTH = DUAL && SHARE == ALL, SQUARES = SHARE == OF_VARIANCE;
  V value[NP], sum[NP], sum2[NP], square[NP];
  T* sums = SQUARES ? dx.v : dx.m;
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) {
    value[n] = load(x + x_at[n]);
    if (BOTH) square[n] = value[n] * value[n];
    if (BOTH) pin(square[n]);
    if (SQUARES) value[n] *= value[n];
    if (SQUARES) pin(value[n]);
    if (DX) sum[n] = V{};
    if (DX && BOTH) sum2[n] = V{};
  }
  if (DX && !dx.opens) {
#pragma GCC unroll 8
    for (int n = 0; n < NP; ++n) {
      sum[n] = load(sums + (p + n) * L);
      if (BOTH) sum2[n] = load(dx.v + (p + n) * L);
    }
  }
  constexpr int STEP = BOTH ? 2 * L : L;  // both gradients: one vector behind the other
  const T* origin = g + g_at[0] + (SQUARES ? distance : 0);
  T* slot = queue;
  for (int64_t k = begin; k < end; ++k) {
    const T* at = origin + offset[k];
    const T* next = origin + offset[k + 1 < end ? k + 1 : k];
    const T* values = weight + (DUAL ? 2 * k : k);
    prefetch_tile<NP, READS>(next);
    add_products<T, NP, DX, READS, FIRST, STEP>(at, g_at, values[SQUARES], value, sum, slot);
    if (BOTH) {
      in_order();  // the second half is to have the registers of the first
      add_products<T, NP, DX, READS, FIRST, STEP>(at + L, g_at, values[1], square, sum2, slot + L);
    }
    slot += BOTH ? 2 * L : L;
  }
  if (!DX) return;
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) {
    if (SHARE == OF_MEAN || !dx.closes) {
      store(sums + (p + n) * L, sum[n]);
      if (BOTH) store(dx.v + (p + n) * L, sum2[n]);
    } else if (SQUARES) {
      store(dx.out + x_at[n], load(dx.m + (p + n) * L) + T(2) * load(x + x_at[n]) * sum[n]);
    } else {
      store(dx.out + x_at[n], BOTH ? sum[n] + T(2) * value[n] * sum2[n] : sum[n]);
    }
  }
}

// The tile function for n vectors, 1 <= n <= MOST.
template <class T, bool DUAL, Share SHARE, bool DX, int... N>
inline auto backward_tile_of(int64_t n, Reads reads, bool first, std::integer_sequence<int, N...>) {
  using Tile = decltype(&backward_tile<T, 1, DUAL, SHARE, DX, ALIGNED, true>);
  static constexpr Tile tiles[3][2][sizeof...(N)] = {
      {{&backward_tile<T, N + 1, DUAL, SHARE, DX, SCATTERED, false>...},
       {&backward_tile<T, N + 1, DUAL, SHARE, DX, SCATTERED, true>...}},
      {{&backward_tile<T, N + 1, DUAL, SHARE, DX, ALIGNED, false>...},
       {&backward_tile<T, N + 1, DUAL, SHARE, DX, ALIGNED, true>...}},
      {{&backward_tile<T, N + 1, DUAL, SHARE, DX, UNALIGNED, false>...},
       {&backward_tile<T, N + 1, DUAL, SHARE, DX, UNALIGNED, true>...}}};
  return tiles[reads][first][n - 1];
}

// Positions [from, to) in tiles of nearly equal size.
template <class T, int MOST, bool DUAL, Share SHARE, bool DX>
inline void backward_span(Mode mode, int64_t from, int64_t to, const T* x, const int32_t* x_at, const T* g,
                          const int32_t* g_at, int64_t distance, const int32_t* offset,
                          const T* weight, int64_t begin, int64_t end, T* queue,
                          const DxSums<T>& dx) {
  constexpr int L = Simd<T>::L;
  constexpr auto sizes = std::make_integer_sequence<int, MOST>();
  for (int64_t p = from, left = ceil_div(to - from, MOST); left > 0; --left) {
    const int64_t n = ceil_div(to - p, left);
    const int64_t wide = DUAL && SHARE == ALL ? 2 * L : L;
    const Reads reads = reads_of(mode, g_at[p + n - 1] - g_at[p] == (n - 1) * wide);
    const auto tile = backward_tile_of<T, DUAL, SHARE, DX>(n, reads, p == from, sizes);
    tile(x, x_at + p, g, g_at + p, distance, offset, weight, begin, end, queue, dx, p);
    p += n;
  }
}

// Adds the sums of the queue's vectors to the gradients of weights [0, count).
template <class T, bool BOTH>
void reduce_queue(const T* queue, int64_t count, T* dmean, T* dvariance) {
  using V = typename Simd<T>::V;
  constexpr int L = Simd<T>::L;
  constexpr int64_t step = BOTH ? 2 * L : L;
  V r[L];
  for (int64_t k = 0; k < count; k += L) {
    for (int array = 0; array < (BOTH ? 2 : 1); ++array) {
      T* to = (array ? dvariance : dmean) + k;
      // The queue has room for whole vectors; what lies beyond the count is not used.
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) r[n] = load(queue + (k + n) * step + array * L);
      const V sum = sum_each<T>(r);
      if (k + L <= count) {
        store(to, load(to) + sum);
      } else {
        for (int64_t n = 0; n < count - k; ++n) to[n] += sum[n];
      }
    }
  }
}
