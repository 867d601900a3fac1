// Standard normals as a function of (seed, counter): Philox-4x32-10 (Salmon et al., SC 2011) and
// Box-Muller. Included inside the namespace of the instruction set.
//
// Elements come in blocks of 64: element 16 j + i of block b is word j of the Philox block with
// counter 16 b + i, so that 16 Philox blocks fill vectors without shuffles. Words 0 and 1 make one
// pair of normals, words 2 and 3 the other. A uniform has all 32 bits of its word.

constexpr int WAYS = 16, BLOCK = 64;

typedef uint32_t Words __attribute__((vector_size(GS_BYTES)));
typedef uint64_t Wide __attribute__((vector_size(GS_BYTES)));
constexpr int WORDS = GS_BYTES / 4;

// Products of the even 32-bit lanes, 64 bits each. Compilers do not find the instruction by themselves.
inline Wide multiply_even(Wide a, Wide b) {
#if defined(__x86_64__) && GS_BYTES == 64
  return reinterpret_cast<Wide>(_mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__x86_64__) && GS_BYTES == 32
  return reinterpret_cast<Wide>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__x86_64__)
  return reinterpret_cast<Wide>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

// What a seed adds in each round, in whole vectors: made once for many blocks.
struct Keys {
  Wide one[10], two[10];
};

inline Keys keys_of(uint64_t seed) {
  Keys keys;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    keys.one[round] = Wide{} + uint64_t{key0};
    keys.two[round] = Wide{} + uint64_t{key1};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return keys;
}

// Ten rounds on the even 32-bit lanes of two sets of counters, whose chains of products overlap. What
// the odd lanes hold counts for nothing: products read the even ones only, and upper halves of products
// come down clean.
inline void philox_rounds(const Keys& keys, Wide* c, Wide* d) {
  const Wide f0 = Wide{} + uint64_t{0xD2511F53u}, f1 = Wide{} + uint64_t{0xCD9E8D57u};
  const auto turn_over = [&](int round, Wide* w) {
    const Wide product0 = multiply_even(w[0], f0);
    // Words 2 and 3 of a counter are zero, and so is what the first round would make of them.
    const Wide product1 = round == 0 ? Wide{} : multiply_even(w[2], f1);
    w[0] = (product1 >> 32) ^ (w[1] ^ keys.one[round]);
    w[1] = product1;
    w[2] = (product0 >> 32) ^ (w[3] ^ keys.two[round]);
    w[3] = product0;
  };
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    turn_over(round, c);
    turn_over(round, d);
  }
}

// The four words of WORDS counters. Those with even and with odd numbers go apart: two products per round
// and half, nothing to shuffle.
inline void philox(const Keys& keys, Wide even_counters, Wide odd_counters, Words* c) {
  Wide even[4] = {even_counters, even_counters >> 32, {}, {}};
  Wide odd[4] = {odd_counters, odd_counters >> 32, {}, {}};
  philox_rounds(keys, even, odd);
  constexpr uint64_t LOW = 0xFFFFFFFFu;
  for (int j = 0; j < 4; ++j) c[j] = reinterpret_cast<Words>((even[j] & LOW) | (odd[j] << 32));
}

template <int... I>
inline Wide even_numbers(std::integer_sequence<int, I...>) {
  return Wide{2 * I...};
}

// Counters first, first + 2 step, first + 4 step, ...; those of the odd lanes lie one step on.
inline Wide even_counters(uint64_t first, uint64_t step) {
  return first + step * even_numbers(std::make_integer_sequence<int, WORDS / 2>());
}

typedef Simd<float>::V Floats;
typedef int32_t Integers __attribute__((vector_size(GS_BYTES)));

// (word + 1/2) / 2^32 with all 32 bits, from the word's halves: they are exact, their sum is rounded once.
inline Floats open_unit(Floats high, Floats low) {
  return high * 0x1p-16f + (low * 0x1p-32f + 0x1p-33f);
}

// ln(u) for u = open_unit(word): the exponent, and a polynomial on [sqrt(1/2), sqrt(2)).
inline Floats log_unit(Words word) {
  const Floats high = __builtin_convertvector(reinterpret_cast<Integers>(word >> 16), Floats);
  const Floats low = __builtin_convertvector(reinterpret_cast<Integers>(word & 0xFFFFu), Floats);
  const Floats u = open_unit(high, low);
  const Integers bits = reinterpret_cast<Integers>(u);
  const Integers exponent = (bits - 0x3F3504F3) >> 23;  // sqrt(1/2)
  const Floats m = reinterpret_cast<Floats>(bits - (exponent << 23));
  // Near one, 1 - u is the unit of the complement, which is exact where u is rounded.
  const Floats f = exponent == 0 ? -open_unit(65535.0f - high, 65535.0f - low) : m - 1.0f;
  // ln(1 + f) = f - f^2 / 2 + f^3 p(f), p fitted at Chebyshev points: 6e-8 absolute
  const Floats p = 0.333333312f + f * (-0.24999989f + f * (0.200007075f + f * (-0.166684802f + f * (0.142499365f + f * (-0.124110507f + f * (0.116615111f + f * (-0.115712007f + f * (0.0714975389f))))))));
  const Floats whole = __builtin_convertvector(exponent, Floats);
  return whole * 0.693147181f + (f - 0.5f * f * f + f * f * f * p);
}

// (cos, sin) of the angle whose fraction of a full turn is word / 2^32, up to a fixed rotation.
inline void turn(Words word, Floats& cosine, Floats& sine) {
  const Floats t = __builtin_convertvector(reinterpret_cast<Integers>(word << 2), Floats) *
                   (0.785398163f * 0x1p-31f);
  const Floats t2 = t * t;
  const Floats s = t * (1.0f + t2 * (-0.166666667f + t2 * (8.33333333e-3f + t2 * (-1.98412698e-4f + t2 * 2.75573192e-6f))));
  const Floats c = 1.0f + t2 * (-0.5f + t2 * (4.16666667e-2f + t2 * (-1.38888889e-3f + t2 * 2.48015873e-5f)));
  const auto odd = (word & (1u << 30)) != 0u;
  const Words sign = word & (1u << 31);  // the upper half of the turn: both are negative
  cosine = reinterpret_cast<Floats>(reinterpret_cast<Words>(odd ? -s : c) ^ sign);
  sine = reinterpret_cast<Floats>(reinterpret_cast<Words>(odd ? c : s) ^ sign);
}

// A vector of each of the four words in, of four normals out, at distance `step`: words 0 and 1 make a pair.
inline void box_muller(float* at, int64_t step) {
  for (int pair = 0; pair < 2; ++pair, at += 2 * step) {
    const Floats square = -2.0f * log_unit(reinterpret_cast<Words>(load(at)));
    const Floats radius = square * estimate_inverse_root(square);  // square > 2e-10
    Floats cosine, sine;
    turn(reinterpret_cast<Words>(load(at + step)), cosine, sine);
    store(at, radius * cosine);
    store(at + step, radius * sine);
  }
}

// `COUNT` vectors of counters, `next` apart: normals at out + (count j + i) WORDS, j the number of the word.
// First all words, then all normals: together they want more registers than there are.
template <int COUNT>
inline void normal_vectors(const Keys& keys, Wide even, Wide odd, uint64_t next, float* out) {
  for (int i = 0; i < COUNT; ++i, even += next, odd += next) {
    Words word[4];
    philox(keys, even, odd, word);
    for (int j = 0; j < 4; ++j) store(out + (COUNT * j + i) * WORDS, reinterpret_cast<Floats>(word[j]));
  }
  for (int i = 0; i < COUNT; ++i) box_muller(out + i * WORDS, COUNT * WORDS);
}

inline void normal_block(const Keys& keys, uint64_t block, float* out) {
  const Wide even = even_counters(block * WAYS, 1);
  normal_vectors<WAYS / WORDS>(keys, even, even + 1, WORDS, out);
}

// The same block of WORDS rows whose blocks lie `step` apart, as [element][row].
inline void normal_columns(const Keys& keys, uint64_t block, uint64_t step, float* out) {
  const Wide even = even_counters(block * WAYS, step * WAYS);
  normal_vectors<WAYS>(keys, even, even + step * WAYS, 1, out);
}

// The same numbers in double: for gradient checks, so plain.
inline void normal_block(const Keys& keys, uint64_t block, double* out) {
  Wide even = even_counters(block * WAYS, 1);
  for (int part = 0; part < WAYS; part += WORDS, even += WORDS) {
    Words word[4];
    philox(keys, even, even + 1, word);
    for (int pair = 0; pair < 2; ++pair)
      for (int i = 0; i < WORDS; ++i) {
        const double u = (static_cast<double>(word[2 * pair][i]) + 0.5) * 0x1p-32;
        const uint32_t w = word[2 * pair + 1][i];
        const double t =
            static_cast<double>(static_cast<int32_t>(w << 2)) * (0.78539816339744831 * 0x1p-31);
        const double quarter = static_cast<double>(w >> 30) * 1.5707963267948966;
        const double r = std::sqrt(-2.0 * std::log(u));
        out[32 * pair + part + i] = r * std::cos(t + quarter);
        out[32 * pair + WAYS + part + i] = r * std::sin(t + quarter);
      }
  }
}

// Normals of the counters first .. first + count - 1.
template <class T>
void normals(uint64_t seed, uint64_t first, int64_t count, T* out) {
  const uint64_t end = first + static_cast<uint64_t>(count);
  const Keys keys = keys_of(seed);
  T whole[BLOCK];
  for (uint64_t block = first / BLOCK; block * BLOCK < end; ++block) {
    const uint64_t start = block * BLOCK;
    if (start >= first && start + BLOCK <= end) {
      normal_block(keys, block, out + (start - first));
      continue;
    }
    normal_block(keys, block, whole);
    const uint64_t from = start < first ? first : start, to = start + BLOCK < end ? start + BLOCK : end;
    for (uint64_t e = from; e < to; ++e) out[e - first] = whole[e - start];
  }
}

template <class T>
void normals_at(uint64_t seed, const int64_t* counters, int64_t count, T* out) {
  const Keys keys = keys_of(seed);
  T whole[BLOCK];
  uint64_t held = ~uint64_t{0};
  for (int64_t n = 0; n < count; ++n) {
    const uint64_t e = static_cast<uint64_t>(counters[n]);
    if (e / BLOCK != held) normal_block(keys, held = e / BLOCK, whole);
    out[n] = whole[e % BLOCK];
  }
}
