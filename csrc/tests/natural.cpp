// Natural-gradient draws and steps against plain loops in double.
#include <cmath>
#include <random>
#include <vector>

#include "../gossamer.h"

void fail(const char* file, int line, const char* what, const char* where);
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, where))

namespace {

template <class T>
std::vector<T> random(size_t count, double low, double high, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(draw(generator));
  return values;
}

template <class T>
bool near(T found, double wanted) {
  return std::abs(double(found) - wanted) <= (sizeof(T) == 8 ? 1e-12 : 4e-6) * (1.0 + std::abs(wanted));
}

template <class T>
struct Weights {
  std::vector<T> theta, mean, eps, h, m, v, gradient, product, decays;
  explicit Weights(size_t n)
      : theta(random<T>(n, -1, 1, 1)), mean(n, T(NAN)), eps(n, T(NAN)), h(random<T>(n, 0.01, 2, 2)),
        m(random<T>(n, -0.1, 0.1, 3)), v(random<T>(n, 0, 0.1, 4)), gradient(random<T>(n, -1, 1, 5)),
        product(random<T>(n, -1, 1, 6)), decays(random<T>(n, 0, 0.1, 7)) {}
  GsNatural call(bool has_decays) {
    GsNatural a{};
    a.count = static_cast<int64_t>(theta.size());
    a.seed = 77, a.first = 13;
    a.size = 500, a.decay = 0.03, a.lr = 0.2, a.new_gradient = 0.1, a.new_square = 0.001;
    a.new_curvature = 0.05, a.scale = 1.7, a.max_step = 0.5;
    a.theta = theta.data(), a.mean = mean.data(), a.eps = eps.data(), a.curvature = h.data();
    a.momentum = m.data(), a.square = v.data(), a.gradient = gradient.data(), a.product = product.data();
    a.decays = has_decays ? decays.data() : nullptr;
    return a;
  }
};

template <class T>
void natural(int dtype, size_t n, int threads, bool has_decays, const char* where) {
  Weights<T> drawn(n);
  const Weights<T> was(n);
  std::vector<T> normals(n);
  GsNatural a = drawn.call(has_decays);
  a.task = GS_NATURAL_DRAW;
  CHECK(gs_natural(dtype, &a, threads) == GS_OK);
  CHECK(gs_normal(dtype, 77, 13, a.count, normals.data(), 1) == GS_OK);
  for (size_t i = 0; i < n; ++i) {
    const double d = has_decays ? was.decays[i] : 0.03;
    CHECK(drawn.mean[i] == was.theta[i]);
    CHECK(drawn.eps[i] == normals[i]);
    CHECK(near(drawn.theta[i], was.theta[i] + normals[i] / std::sqrt(500 * (was.h[i] + d))));
  }
  for (const int64_t task : {GS_NATURAL_ADAM, GS_NATURAL_IVON, GS_PLAIN_ADAM})
  for (const bool has_product : {true, false}) {
    Weights<T> now(n);
    GsNatural b = now.call(has_decays);
    b.task = task;
    if (!has_product) b.product = nullptr, b.eps = normals.data();  // of one draw: eps * gradient
    CHECK(gs_natural(dtype, &b, threads) == GS_OK);
    for (size_t i = 0; i < n; ++i) {
      const bool plain = task == GS_PLAIN_ADAM;
      const double d = plain ? 0.0 : has_decays ? double(was.decays[i]) : 0.03, before = was.h[i] + d;
      const double product = has_product ? double(was.product[i]) : double(normals[i]) * was.gradient[i];
      const double hat = product * std::sqrt(500 * before);
      const double h = 0.95 * was.h[i] + 0.05 * hat + 0.5 * 0.05 * 0.05 * (hat - was.h[i]) * (hat - was.h[i]) / before;
      double g = was.gradient[i], m, v = was.v[i], theta = was.theta[i];
      if (task == GS_NATURAL_IVON) {
        m = 0.9 * was.m[i] + 0.1 * g;
        const double move = 0.2 * (1.7 * m + d * theta) / (h + d), limit = 0.5 / std::sqrt(500 * before);
        theta -= std::fmax(-limit, std::fmin(limit, move));
      } else {
        g += d * theta;
        m = 0.9 * was.m[i] + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        theta -= 0.2 * m / (1.7 * std::sqrt(v) + 1e-8);
      }
      CHECK(plain ? now.h[i] == was.h[i] : near(now.h[i], h));
      CHECK(near(now.m[i], m));
      CHECK(near(now.v[i], v));
      CHECK(near(now.theta[i], theta));
    }
  }
}

}  // namespace

void test_natural() {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{64}, size_t{1001}, size_t{40000}})
    for (const bool has_decays : {false, true}) {
      natural<float>(GS_FLOAT32, n, 3, has_decays, "float natural");
      natural<double>(GS_FLOAT64, n, 1, has_decays, "double natural");
    }
  const char* where = "unknown task";
  GsNatural a{};
  a.task = 9;
  CHECK(gs_natural(GS_FLOAT32, &a, 1) == GS_BAD_ARGUMENT);
}
