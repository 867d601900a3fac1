// Normals against a second implementation, one counter at a time: Philox-4x32-10 in 64-bit integers
// and Box-Muller in double.
#include <cmath>
#include <cstring>
#include <vector>

#include "../gossamer.h"

void fail(const char* file, int line, const char* what, const char* where);
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, where))

namespace {

void philox(uint64_t counter, uint64_t key, uint32_t* c) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  c[0] = static_cast<uint32_t>(counter);
  c[1] = static_cast<uint32_t>(counter >> 32);
  c[2] = c[3] = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    std::memcpy(c, next, sizeof next);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Element 16 j + i of block b is word j of counter 16 b + i; a turn of the angle is 2^32, less an
// eighth of it where the remainder of the quarter is at least its half.
double slow_normal(uint64_t seed, uint64_t element, double* radius) {
  uint32_t word[4];
  const uint64_t inside = element % 64;
  philox(element / 64 * 16 + inside % 16, seed, word);
  const uint64_t j = inside / 16;
  const double u = (word[j & 2] + 0.5) / 4294967296.0;
  const uint32_t angle = word[(j & 2) + 1], rest = angle & 0x3FFFFFFFu;
  const double quarter = 1.5707963267948966;
  double fraction = rest / 1073741824.0;  // of a quarter
  if (fraction >= 0.5) fraction -= 1.0;
  const double turn = (fraction + (angle >> 30)) * quarter;
  *radius = std::sqrt(-2.0 * std::log(u));
  return *radius * (j % 2 == 0 ? std::cos(turn) : std::sin(turn));
}

template <class T>
bool is_close(T found, uint64_t seed, uint64_t element) {
  double radius;
  const double wanted = slow_normal(seed, element, &radius);
  return std::abs(double(found) - wanted) <= (sizeof(T) == 8 ? 1e-13 : 2e-6);
}

template <class T>
void check(int dtype, const char* where) {
  const uint64_t seeds[] = {0, 1, 0x123456789ABCDEFu, (uint64_t{1} << 63) - 1};
  const uint64_t starts[] = {0, 1, 63, 64, 1000, (uint64_t{1} << 36) - 70, uint64_t{1} << 57};
  for (uint64_t seed : seeds)
    for (uint64_t start : starts)
      for (int64_t count : {1, 5, 64, 65, 300}) {
        std::vector<T> out(static_cast<size_t>(count), T(NAN)), at(out);
        CHECK(gs_normal(dtype, seed, start, count, out.data(), 1) == GS_OK);
        std::vector<int64_t> counters;
        bool close = true;
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t element = start + static_cast<uint64_t>(i);
          counters.push_back(static_cast<int64_t>(element));
          close = close && is_close(out[size_t(i)], seed, element);
        }
        CHECK(close);
        CHECK(gs_normal_at(dtype, seed, counters.data(), count, at.data(), 1) == GS_OK);
        CHECK(std::memcmp(out.data(), at.data(), out.size() * sizeof(T)) == 0);
      }
  // Any order of counters, repeats included.
  const std::vector<int64_t> mixed{70, 3, 3, 1 << 20, 0, 69, int64_t{1} << 40, 3};
  std::vector<T> found(mixed.size());
  CHECK(gs_normal_at(dtype, 5, mixed.data(), int64_t(mixed.size()), found.data(), 2) == GS_OK);
  for (size_t i = 0; i < mixed.size(); ++i)
    CHECK(is_close(found[i], 5, uint64_t(mixed[i])));
  // Several tasks, the last one partial: the same bits on any number of threads.
  const size_t many = (1 << 16) + 77;
  std::vector<T> first(many), other(many);
  CHECK(gs_normal(dtype, 9, 13, int64_t(many), first.data(), 1) == GS_OK);
  for (int threads : {2, 8}) {
    std::fill(other.begin(), other.end(), T(NAN));
    CHECK(gs_normal(dtype, 9, 13, int64_t(many), other.data(), threads) == GS_OK);
    CHECK(std::memcmp(first.data(), other.data(), many * sizeof(T)) == 0);
  }
  CHECK(gs_normal(dtype, 9, 0, 0, nullptr, 8) == GS_OK);
  CHECK(gs_normal_at(dtype, 9, nullptr, 0, nullptr, 8) == GS_OK);
}

}  // namespace

void test_normals() {
  const char* where = "known answer";
  uint32_t word[4];
  philox(0, 0, word);  // of the authors' Random123: kat_vectors, philox4x32 10
  CHECK(word[0] == 0x6627e8d5u && word[1] == 0xe169c58du);
  CHECK(word[2] == 0xbc57ac4cu && word[3] == 0x9b00dbd8u);
  check<float>(GS_FLOAT32, "normals, float");
  check<double>(GS_FLOAT64, "normals, double");
}
