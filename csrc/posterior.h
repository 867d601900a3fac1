// The Gaussian posterior of every kept weight: variances, the KL to the prior, and their gradients.
// One pass each, one for the KL and its gradient, in double whatever the storage, with as many terms of
// every series as the storage has digits for (1e-8 and 1e-16). Included inside the namespace of the
// instruction set.

typedef Simd<double>::V Doubles;
typedef int64_t Longs __attribute__((vector_size(GS_BYTES)));
constexpr int DOUBLES = GS_BYTES / 8;

// `count` values, zeros beyond them.
inline Doubles load_doubles(const double* p, int64_t count) {
  if (count >= DOUBLES) return load(p);
  Doubles v = {};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
inline Doubles load_doubles(const float* p, int64_t count) {
  typedef float Halves __attribute__((vector_size(GS_BYTES / 2)));
  Halves v = {};
  if (count >= DOUBLES) {
    __builtin_memcpy(&v, p, sizeof v);
  } else {
    for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  }
  return __builtin_convertvector(v, Doubles);
}
template <class T>
inline void store_doubles(T* p, Doubles v, int64_t count) {
  typedef T Narrow __attribute__((vector_size(sizeof(T) * DOUBLES)));
  const Narrow narrow = __builtin_convertvector(v, Narrow);
  if (count >= DOUBLES) {
    __builtin_memcpy(p, &narrow, sizeof narrow);
  } else {
    for (int64_t i = 0; i < count; ++i) p[i] = narrow[i];
  }
}

// e^-a for a >= 0: 2^-n e^r with |r| <= ln(2) / 2.
template <class T>
inline Doubles exp_minus(Doubles a) {
  constexpr double ROUND = 0x1.8p52;
  a = a > 708.0 ? Doubles{} + 708.0 : a;  // the least normal number; keeps a NaN
  const Doubles shifted = a * 1.4426950408889634 + ROUND, n = shifted - ROUND;
  const Doubles r = (n * 0x1.62e42fefa38p-1 - a) + n * 0x1.ef35793c7673p-45;  // ln 2 in two parts
  constexpr double INVERSE_FACTORIALS[] = {
      1.0,          1.0,           0.5,            1.0 / 6.0,       1.0 / 24.0,
      1.0 / 120.0,  1.0 / 720.0,   1.0 / 5040.0,   1.0 / 40320.0,   1.0 / 362880.0,
      1.0 / 3628800.0, 1.0 / 39916800.0, 1.0 / 479001600.0, 1.0 / 6227020800.0};
  Doubles p = {};
#pragma GCC unroll 14
  for (int i = sizeof(T) == 8 ? 13 : 7; i >= 0; --i) p = p * r + INVERSE_FACTORIALS[i];
  const Longs power = (1023 - (reinterpret_cast<Longs>(shifted) & 0xFFF)) << 52;
  return p * reinterpret_cast<Doubles>(power);
}

// 2 artanh(s), which is ln((1 + s) / (1 - s)), from that many odd powers of s.
template <int TERMS>
inline Doubles twice_artanh(Doubles s) {
  const Doubles z = s * s;
  Doubles p = {};
#pragma GCC unroll 17
  for (int i = TERMS - 1; i >= 0; --i) p = p * z + 1.0 / (2 * i + 1);
  return 2.0 * s * p;
}

// ln(v) for normal v > 0: |s| <= 0.18.
template <class T>
inline Doubles log_of(Doubles v) {
  const Longs bits = reinterpret_cast<Longs>(v);
  const Longs exponent = (bits - 0x3FE6A09E667F3BCD) >> 52;  // sqrt(1/2)
  const Doubles f = reinterpret_cast<Doubles>(bits - (exponent << 52)) - 1.0;
  return __builtin_convertvector(exponent, Doubles) * 0.69314718055994531 +
         twice_artanh<sizeof(T) == 8 ? 11 : 6>(f / (2.0 + f));
}

// std = softplus(raw), and its derivative sigmoid(raw).
struct Std {
  Doubles value, slope;
};
template <class T>
inline Std std_of(Doubles raw) {
  const Doubles z = exp_minus<T>(raw < 0.0 ? -raw : raw), share = 1.0 / (1.0 + z);
  // ln(1 + z) for z <= 1: |s| <= 1/3
  const Doubles rest = twice_artanh<sizeof(T) == 8 ? 17 : 9>(z / (2.0 + z));
  return {(raw > 0.0 ? raw : Doubles{}) + rest, raw > 0.0 ? share : z * share};
}

template <class T>
void variances(int64_t n, const T* raw, T* variance) {
  for (int64_t i = 0; i < n; i += DOUBLES) {
    const Doubles std = std_of<T>(load_doubles(raw + i, n - i)).value;
    store_doubles(variance + i, std * std, n - i);
  }
}

// The gradient of the raw parameter from that of the variance.
template <class T>
void variances_backward(int64_t n, const T* raw, const T* gradient, T* raw_grad) {
  for (int64_t i = 0; i < n; i += DOUBLES) {
    const Std std = std_of<T>(load_doubles(raw + i, n - i));
    store_doubles(raw_grad + i, 2.0 * load_doubles(gradient + i, n - i) * std.value * std.slope, n - i);
  }
}

// Sum of mean^2 + std^2: what the scale of an empirical prior is made of.
template <class T>
double second_moment(int64_t n, const T* mean, const T* raw) {
  Doubles sum = {};
  for (int64_t i = 0; i < n; i += DOUBLES) {
    const Doubles std = std_of<T>(load_doubles(raw + i, n - i)).value;
    const Doubles m = load_doubles(mean + i, n - i);
    Doubles one = m * m + std * std;
    for (int64_t lane = n - i; lane < DOUBLES; ++lane) one[lane] = 0.0;
    sum += one;
  }
  double total = 0.0;
  for (int lane = 0; lane < DOUBLES; ++lane) total += sum[lane];
  return total;
}

// Sum of KL(N(mean, std^2) || N(0, prior^2)) = (t^2 - 1) / 2 - ln t + (mean / prior)^2 / 2 with
// t = std / prior. What cancels near t = 1 is beyond the digits of a double sum. And, unless null, the
// gradient of the raw parameters (that of the means is mean / prior^2).
template <class T>
double kl(int64_t n, const T* mean, const T* raw, double prior, T* raw_grad) {
  Doubles sum = {};
  const double inverse = 1.0 / prior;
  for (int64_t i = 0; i < n; i += DOUBLES) {
    const Std std = std_of<T>(load_doubles(raw + i, n - i));
    const Doubles t = std.value * inverse, m = load_doubles(mean + i, n - i) * inverse;
    // t^2 - 1 without the loss of digits near the prior
    const Doubles excess = (std.value - prior) * (std.value + prior) * (inverse * inverse);
    if (raw_grad) store_doubles(raw_grad + i, std.slope * excess / std.value, n - i);
    Doubles one = 0.5 * (excess + m * m) - log_of<T>(t);
    for (int64_t lane = n - i; lane < DOUBLES; ++lane) one[lane] = 0.0;
    sum += one;
  }
  double total = 0.0;
  for (int lane = 0; lane < DOUBLES; ++lane) total += sum[lane];
  return total;
}
