// What surrounds the products: posteriors of the weights and batch normalisation, against plain loops.
#include <cmath>
#include <initializer_list>
#include <random>
#include <vector>

#include "../gossamer.h"

void fail(const char* file, int line, const char* what, const char* where);
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, where))

namespace {

template <class T>
std::vector<T> random(size_t count, double centre, double spread, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> draw(centre, spread);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(draw(generator));
  return values;
}

template <class T>
bool near(T found, double wanted, double scale) {
  return std::abs(double(found) - wanted) <= (sizeof(T) == 8 ? 1e-12 : 2e-6) * scale;
}

template <class T>
void posterior(int dtype, int64_t count, int threads, const char* where) {
  const size_t n = static_cast<size_t>(count);
  const auto mean = random<T>(n, 0.0, 1.0, 1), raw = random<T>(n, -3.0, 4.0, 2);
  const auto up = random<T>(n, 0.0, 1.0, 3);
  std::vector<T> variance(n, T(NAN)), raw_grad(variance);
  const double prior = 0.3;
  double sum = NAN;
  GsPosterior call{};
  call.count = count;
  call.mean = mean.data();
  call.raw = raw.data();
  call.dvariance = up.data();
  call.variance = variance.data();
  call.raw_grad = raw_grad.data();
  call.prior = prior;
  const auto run = [&](int64_t task) {
    call.task = task;
    return gs_posterior(dtype, &call, &sum, threads) == GS_OK;
  };
  CHECK(run(GS_VARIANCE));
  CHECK(run(GS_VARIANCE_BACKWARD));
  const std::vector<T> from_variance = raw_grad;
  CHECK(run(GS_KL));
  const double with_gradient = sum;
  const std::vector<T> from_kl = raw_grad;
  call.raw_grad = nullptr;
  CHECK(run(GS_KL));
  CHECK(sum == with_gradient);
  double moment = NAN, square = 0.0;
  CHECK(gs_second_moment(dtype, count, mean.data(), raw.data(), &moment, threads) == GS_OK);
  double total = 0.0;
  for (size_t i = 0; i < n; ++i) {
    const double r = raw[i], std = r > 30 ? r : std::log1p(std::exp(r)), slope = 1 / (1 + std::exp(-r));
    const double t = std / prior, m = mean[i];
    total += 0.5 * (t * t - 1 + m * m / (prior * prior)) - std::log(t);
    square += m * m + std * std;
    CHECK(near(variance[i], std * std, std * std));
    CHECK(near(from_variance[i], up[i] * 2 * std * slope, std::abs(up[i]) * 2 * std * slope));
    const double size = slope * (std / (prior * prior) + 1 / std);
    CHECK(near(from_kl[i], slope * (std / (prior * prior) - 1 / std), size));
  }
  CHECK(near(static_cast<T>(sum), total, std::abs(total) + 1e-300));
  CHECK(near(static_cast<T>(moment), square, square + 1e-300));
}

// With a residual and a ReLU, or without both.
template <class T>
void batchnorm(int dtype, int64_t batch, int64_t channels, int64_t size, bool relu, int threads,
               const char* where) {
  const size_t n = static_cast<size_t>(batch * channels * size), c = static_cast<size_t>(channels);
  const auto x = random<T>(n, 5.0, 2.0, 4), g = random<T>(n, 0.1, 1.0, 5);
  const auto weight = random<T>(c, 1.0, 0.5, 6), bias = random<T>(c, 0.0, 1.0, 7);
  const auto residual = random<T>(n, 0.0, 1.0, 8);
  std::vector<T> y(n, T(NAN)), dx(y), dresidual(y), evaluated(y), mean(c, T(NAN)), variance(mean),
      inverse(mean), dweight(mean), dbias(mean);
  GsBatchNorm call{};
  call.batch = batch;
  call.channels = channels;
  call.size = size;
  call.relu = relu;
  call.eps = 1e-5;
  call.x = x.data();
  call.weight = weight.data();
  call.bias = bias.data();
  call.residual = relu ? residual.data() : nullptr;
  call.y = y.data();
  call.mean = mean.data();
  call.variance = variance.data();
  call.inverse = inverse.data();
  CHECK(gs_batchnorm(dtype, &call, threads) == GS_OK);
  GsBatchNorm again = call;
  again.evaluates = 1;
  again.y = evaluated.data();
  CHECK(gs_batchnorm(dtype, &again, threads) == GS_OK);
  call.gradient = g.data();
  call.dx = dx.data();
  call.dweight = dweight.data();
  call.dbias = dbias.data();
  call.dresidual = relu ? dresidual.data() : nullptr;
  CHECK(gs_batchnorm(dtype, &call, threads) == GS_OK);
  const double count = static_cast<double>(batch * size);
  for (int64_t channel = 0; channel < channels; ++channel) {
    const auto each = [&](auto fn) {
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t i = 0; i < size; ++i)
          fn(static_cast<size_t>((b * channels + channel) * size + i));
    };
    const size_t k = static_cast<size_t>(channel);
    double centre = 0, spread = 0, sum = 0, product = 0;
    each([&](size_t i) { centre += x[i] / count; });
    each([&](size_t i) { spread += (x[i] - centre) * (x[i] - centre) / count; });
    const double root = 1 / std::sqrt(spread + call.eps);
    // Whether the output is positive is taken from it: rounding may decide.
    const auto upstream = [&](size_t i) { return relu && y[i] <= 0 ? 0.0 : static_cast<double>(g[i]); };
    each([&](size_t i) {
      sum += upstream(i);
      product += upstream(i) * (x[i] - centre) * root;
    });
    CHECK(near(mean[k], centre, 10));
    CHECK(near(variance[k], spread, 10));
    CHECK(near(dbias[k], sum, 10 * count));
    CHECK(near(dweight[k], product, 10 * count));
    each([&](size_t i) {
      const double z = (x[i] - centre) * root, whole = weight[k] * z + bias[k];
      const double expected = relu ? std::max(0.0, whole + residual[i]) : whole;
      CHECK(near(y[i], expected, 100));
      CHECK(near(evaluated[i], expected, 100));
      CHECK(near(dx[i], weight[k] * root * (upstream(i) - sum / count - z * product / count),
                 100 * (1 + root)));
      if (relu) CHECK(static_cast<double>(dresidual[i]) == upstream(i));
    });
  }
}

}  // namespace

void test_posterior() {
  for (int64_t count : {0, 1, 7, 64, 20001}) {
    posterior<float>(GS_FLOAT32, count, 2, "float posterior");
    posterior<double>(GS_FLOAT64, count, 8, "double posterior");
  }
}

void test_batchnorm() {
  const int64_t shapes[][3] = {{2, 1, 1}, {5, 3, 7}, {3, 70, 16}, {33, 2, 1100}, {300, 5, 1}};
  for (const auto& shape : shapes) {
    for (bool relu : {false, true}) {
      batchnorm<float>(GS_FLOAT32, shape[0], shape[1], shape[2], relu, 2, "float batchnorm");
      batchnorm<double>(GS_FLOAT64, shape[0], shape[1], shape[2], relu, 8, "double batchnorm");
    }
  }
}
