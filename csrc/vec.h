// Vectors of one instruction set, with compiler extensions only. GS_BYTES is the register's width.
// Included inside the namespace of the instruction set.

template <class T>
struct Simd;
template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(GS_BYTES)));
  static constexpr int L = GS_BYTES / 4;
};
template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(GS_BYTES)));
  static constexpr int L = GS_BYTES / 8;
};

template <class T>
inline typename Simd<T>::V load(const T* p) {
  typename Simd<T>::V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline void store(T* p, typename Simd<T>::V v) {
  __builtin_memcpy(p, &v, sizeof v);
}
template <class T>
inline typename Simd<T>::V splat(T x) {
  typename Simd<T>::V zero = {};
  return x - zero;  // folds to a broadcast, which zero + x does not: -0 + 0 is 0
}

// Keeps a loaded vector in its register. A compiler would rather load it again for its second use,
// and loads are what these loops wait for.
template <class V>
inline void pin(V& v) {
#if defined(__x86_64__) && GS_BYTES == 64
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#else
  (void)v;
#endif
}

// What stands before is read and written before what follows.
inline void in_order() {
#if defined(__GNUC__)
  asm volatile("" ::: "memory");
#endif
}

// How a tile's vectors lie: anywhere, one after the other at a vector's boundary, or at any float.
enum Reads { SCATTERED, ALIGNED, UNALIGNED };
inline Reads reads_of(Mode mode, bool contiguous) {
  return !contiguous ? SCATTERED : mode == FLAT ? UNALIGNED : ALIGNED;
}

// Asks for the cache lines of the next tile. Only vectors as wide as a line pay for it: unaligned,
// each lies across two lines. With narrower ones the instructions cost more than they bring.
template <int NP, Reads READS, class T>
inline void prefetch_tile(const T* next) {
  if (READS != UNALIGNED || GS_BYTES < 64) return;
#pragma GCC unroll 8
  for (int n = 0; n < NP; ++n) __builtin_prefetch(next + n * Simd<T>::L);
}

// An estimate of 1 / sqrt(v) for normal numbers, refined once; exact divisions and roots are slow.
inline Simd<float>::V estimate_inverse_root(Simd<float>::V v) {
  typedef Simd<float>::V V;
#if defined(__x86_64__) && GS_BYTES == 64
  V y = reinterpret_cast<V>(_mm512_maskz_rsqrt14_ps(0xFFFF, reinterpret_cast<__m512>(v)));
#elif defined(__x86_64__) && GS_BYTES == 32
  V y = reinterpret_cast<V>(_mm256_rsqrt_ps(reinterpret_cast<__m256>(v)));
#elif defined(__x86_64__)
  V y = reinterpret_cast<V>(_mm_rsqrt_ps(reinterpret_cast<__m128>(v)));
#else
  V y;
  for (int i = 0; i < Simd<float>::L; ++i) y[i] = 1.0f / std::sqrt(v[i]);
#endif
  return y * (1.5f - 0.5f * v * y * y);
}
inline Simd<double>::V estimate_inverse_root(Simd<double>::V v) {
  Simd<double>::V y;
  for (int i = 0; i < Simd<double>::L; ++i) y[i] = 1.0 / std::sqrt(v[i]);
  return y;
}

// Whether all lanes of a comparison hold; false where it would cost more to ask.
inline bool all_of(decltype(Simd<float>::V{} < Simd<float>::V{}) found) {
#if defined(__x86_64__) && GS_BYTES == 32
  return _mm256_movemask_ps(reinterpret_cast<__m256>(found)) == 0xFF;
#elif defined(__x86_64__) && GS_BYTES == 16
  return _mm_movemask_ps(reinterpret_cast<__m128>(found)) == 0xF;
#else
  (void)found;
  return false;
#endif
}

// 1 / sqrt(v) where v > 0, else 0.
template <class T>
inline typename Simd<T>::V inverse_root(typename Simd<T>::V v) {
  typedef typename Simd<T>::V V;
  const V zero = {}, one = zero + T(1);
  if constexpr (sizeof(T) == 4)
    if (all_of(v >= T(1e-30))) return estimate_inverse_root(v);  // as nearly always
  const auto tiny = v < T(1e-30);  // may be below the normal numbers: scaled up by 2^60
  const V scaled = tiny ? v * T(0x1p60) : v;
  const V y = estimate_inverse_root(scaled > zero ? scaled : one);
  return v > zero ? (tiny ? y * T(0x1p30) : y) : zero;
}

// Lane j of the exchanged pair (a, b) at distance H: the upper half of each 2x2 block, or the lower.
template <int H, int L, bool LOW>
constexpr int exchanged(int j) {
  return LOW ? ((j & H) ? L + j - H : j) : ((j & H) ? L + j : j + H);
}
template <class V, int H, int L, bool LOW, int... J>
inline V exchange(V a, V b, std::integer_sequence<int, J...>) {
  return __builtin_shufflevector(a, b, exchanged<H, L, LOW>(J)...);
}
template <class T, int H, bool LOW>
inline typename Simd<T>::V exchange(typename Simd<T>::V a, typename Simd<T>::V b) {
  constexpr int L = Simd<T>::L;
  return exchange<typename Simd<T>::V, H, L, LOW>(a, b, std::make_integer_sequence<int, L>());
}

// r[i][j] <-> r[j][i] for L vectors of L lanes.
template <class T, int H = 1>
inline void transpose_block(typename Simd<T>::V* r) {
  constexpr int L = Simd<T>::L;
  if constexpr (H < L) {
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i)
      if (!(i & H)) {
        const auto a = r[i], b = r[i + H];
        r[i] = exchange<T, H, true>(a, b);
        r[i + H] = exchange<T, H, false>(a, b);
      }
    transpose_block<T, H * 2>(r);
  }
}

// Lane j of the result is the sum of r[j]: L sums for the price of L - 1 additions.
template <class T, int H = 1>
inline typename Simd<T>::V sum_each(typename Simd<T>::V* r) {
  constexpr int L = Simd<T>::L;
  if constexpr (H < L) {
#pragma GCC unroll 16
    for (int i = 0; i < L; i += 2 * H)
      r[i] = exchange<T, H, true>(r[i], r[i + H]) + exchange<T, H, false>(r[i], r[i + H]);
    return sum_each<T, H * 2>(r);
  } else {
    return r[0];
  }
}

// Asks for the lines of L rows that the next blocks will read: rows are too short for a processor to guess
// where they go on. One request per line, at the column that opens it.
template <class T>
inline void prefetch_rows(const T* rows, int64_t step, int64_t column) {
  if ((column & (64 / static_cast<int64_t>(sizeof(T)) - 1)) != 0) return;
  for (int n = 0; n < Simd<T>::L; ++n) __builtin_prefetch(rows + n * step);
}

// dst[j * dst_step + i] = src[i * src_step + j] for i < rows, j < columns.
template <class T>
inline void transpose(const T* src, int64_t src_step, int64_t rows, int64_t columns, T* dst,
                      int64_t dst_step) {
  constexpr int L = Simd<T>::L;
  typename Simd<T>::V r[L];
  const auto block = [&](int64_t i, int64_t j) {
    if (rows - i >= L && columns - j >= L) {
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) r[n] = load(src + (i + n) * src_step + j);
      transpose_block<T>(r);
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) store(dst + (j + n) * dst_step + i, r[n]);
      return;
    }
    const int64_t height = std::min<int64_t>(L, rows - i), width = std::min<int64_t>(L, columns - j);
    for (int64_t a = 0; a < height; ++a)
      for (int64_t b = 0; b < width; ++b)
        dst[(j + b) * dst_step + i + a] = src[(i + a) * src_step + j + b];
  };
  // Along the rows of the side whose rows are farther apart: a few streams for the prefetcher.
  if (src_step >= dst_step) {
    for (int64_t i = 0; i < rows; i += L)
      for (int64_t j = 0; j < columns; j += L) {
        if (i + 2 * L <= rows) prefetch_rows<T>(src + (i + L) * src_step + j, src_step, j);
        block(i, j);
      }
  } else {
    for (int64_t j = 0; j < columns; j += L)
      for (int64_t i = 0; i < rows; i += L) block(i, j);
  }
}
