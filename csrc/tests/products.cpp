// Forward, backward and samples of one layer against plain loops over every product of an input with a kept
// weight, in double; and the same bits on any number of threads. The layers are in cases.cpp.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../gossamer.h"

void fail(const char* file, int line, const char* what, const char* where);
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, where))

namespace {

std::mt19937 random_engine;
int64_t pick(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_engine);
}
int64_t volume(const int64_t* d) { return d[0] * d[1] * d[2]; }

// Random numbers of size one, a tenth of them zero, as T holds them.
template <class T>
std::vector<T> numbers(int64_t count, double low = -1.0) {
  std::uniform_real_distribution<double> uniform(low, 1.0);
  std::vector<T> found(static_cast<size_t>(count));
  for (T& value : found) value = pick(0, 9) == 0 ? T(0) : T(uniform(random_engine));
  return found;
}

struct Case {
  GsGeometry g;
  bool transposed;
  std::vector<int32_t> indices;
  std::string name;
};

std::string describe(const Case& c) {
  std::string text = c.transposed ? "transposed" : "plain";
  const auto add = [&](const char* name, const int64_t* values, int count) {
    text += std::string(" ") + name;
    for (int i = 0; i < count; ++i) text += (i ? "," : "=") + std::to_string(values[i]);
  };
  add("batch", &c.g.batch, 1);
  add("channels", &c.g.channels, 1);
  add("outputs", &c.g.outputs, 1);
  add("groups", &c.g.groups, 1);
  add("in", c.g.in, 3);
  add("out", c.g.out, 3);
  add("kernel", c.g.kernel, 3);
  add("stride", c.g.stride, 3);
  add("dilation", c.g.dilation, 3);
  add("up", c.g.up, 3);
  add("pad", c.g.pad, 3);
  return text + " nnz=" + std::to_string(c.indices.size());
}

// Calls f(k, output channel, input channel, output pixel, input pixel) for every product of one
// example. A transposed convolution is written as one: inputs are spread, not gathered.
template <class F>
void each_product(const Case& c, F&& f) {
  const GsGeometry& g = c.g;
  const int64_t taps = volume(g.kernel), width = (c.transposed ? g.outputs : g.channels) / g.groups;
  const int64_t height = (c.transposed ? g.channels : g.outputs) / g.groups;
  for (size_t k = 0; k < c.indices.size(); ++k) {
    const int64_t slow = c.indices[k] / (taps * width), fast = c.indices[k] / taps % width;
    const int64_t other = slow / height * width + fast, tap = c.indices[k] % taps;
    const int64_t o = c.transposed ? other : slow, channel = c.transposed ? slow : other;
    const int64_t at[3] = {tap / (g.kernel[1] * g.kernel[2]), tap / g.kernel[2] % g.kernel[1], tap % g.kernel[2]};
    std::vector<std::pair<int64_t, int64_t>> pairs[3];  // (out, in) of each dimension
    for (int d = 0; d < 3; ++d)
      for (int64_t i = 0; i < g.in[d]; ++i) {
        const int64_t padding = (g.kernel[d] - 1) * g.dilation[d] - g.pad[d];
        int64_t out = c.transposed ? i * g.up[d] + at[d] * g.dilation[d] - padding
                                   : i + g.pad[d] - at[d] * g.dilation[d];
        if (out < 0 || (!c.transposed && out % g.stride[d])) continue;
        if (!c.transposed) out /= g.stride[d];
        if (out < g.out[d]) pairs[d].emplace_back(out, i);
      }
    for (const auto& z : pairs[0])
      for (const auto& y : pairs[1])
        for (const auto& x : pairs[2])
          f(k, o, channel, (z.first * g.out[1] + y.first) * g.out[2] + x.first,
            (z.second * g.in[1] + y.second) * g.in[2] + x.second);
  }
}

// A compensated sum (Neumaier's) with the sum of its terms' sizes, which scales the rounding of the engine's.
struct Sum {
  double value = 0.0, size = 0.0;
  void operator+=(double term) {
    const double sum = plain + term;
    lost += std::abs(plain) >= std::abs(term) ? (plain - sum) + term : (term - sum) + plain;
    plain = sum;
    value = plain + lost;
    size += std::abs(term);
  }

 private:
  double plain = 0.0, lost = 0.0;
};

template <class T>
constexpr double ROUNDING = sizeof(T) == 4 ? 2e-6 : 4e-15;

template <class T>
bool close(const std::vector<T>& got, const std::vector<Sum>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!(std::abs(double(got[i]) - wanted[i].value) <= ROUNDING<T> * (wanted[i].size + 1e-3))) return false;
  return true;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

enum Kind { PRODUCT, MOMENTS, LOCAL };

// Where element (row, column) of a matrix lies: contiguous, transposed or repeated.
struct Strides {
  int64_t row, column, count;
};
Strides strides(int64_t rows, int64_t columns, bool may_vary) {
  const int64_t kind = may_vary ? pick(0, 4) : 0;
  if (kind == 1) return {1, rows, rows * columns};
  if (kind == 2) return {0, 1, columns};
  if (kind == 3) return {0, 0, 1};
  if (kind == 4) return {2 * columns + 1, 2, rows * (2 * columns + 1)};
  return {columns, 1, rows * columns};
}

// Samples with weights of their own against the same loops; x may be one for all samples.
template <class T>
void check_samples(const Case& c, const GsPattern& pattern) {
  const char* where = c.name.c_str();
  const GsGeometry& g = c.g;
  const int dtype = sizeof(T) == 8 ? GS_FLOAT64 : GS_FLOAT32;
  const int64_t nnz = int64_t(c.indices.size()), pixels_in = volume(g.in), pixels = volume(g.out);
  const int64_t inputs = g.channels * pixels_in, outputs = g.outputs * pixels, rows = std::min<int64_t>(g.batch, 9);
  for (int64_t samples : {1, 3, 8, 19}) {
    const bool shared = pick(0, 2) == 0, has_bias = pick(0, 1) == 1;
    const auto x = numbers<T>((shared ? 1 : samples) * rows * inputs), bias = numbers<T>(g.outputs);
    const auto mean = numbers<T>(nnz + 1), deviation = numbers<T>(nnz + 1, 0.0);
    std::vector<uint64_t> seeds;
    std::vector<T> eps(size_t(samples * nnz));
    for (int64_t s = 0; s < samples; ++s) {
      seeds.push_back(uint64_t(1000 * samples + s));
      CHECK(gs_normal(dtype, seeds.back(), 0, nnz, eps.data() + s * nnz, 1) == GS_OK);
    }
    std::vector<Sum> wanted(size_t(samples * rows * outputs));
    if (has_bias)
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += double(bias[i / size_t(pixels) % size_t(g.outputs)]);
    each_product(c, [&](size_t k, int64_t o, int64_t channel, int64_t out, int64_t in) {
      for (int64_t s = 0; s < samples; ++s)
        for (int64_t b = 0; b < rows; ++b) {
          const int64_t from = ((shared ? 0 : s) * rows + b) * inputs + channel * pixels_in + in;
          Sum& sum = wanted[size_t(((s * rows + b) * g.outputs + o) * pixels + out)];
          // Two terms: where they cancel, the weight has the rounding of both.
          sum += double(mean[k]) * double(x[size_t(from)]);
          sum += double(deviation[k]) * double(eps[size_t(s * nnz) + k]) * double(x[size_t(from)]);
        }
    });
    std::vector<T> first;
    for (int threads : {1, 2, 8}) {
      std::vector<T> y(wanted.size(), T(NAN));
      const GsSamples call{samples, rows, x.data(), shared ? 0 : rows * inputs, inputs, pixels_in, mean.data(),
                           deviation.data(), seeds.data(), has_bias ? bias.data() : nullptr, y.data()};
      CHECK(gs_samples(&g, &pattern, dtype, &call, threads) == GS_OK);
      if (threads == 1) {
        CHECK(close(y, wanted));
        first = y;
      }
      CHECK(same_bits(y, first));
    }
  }
}

template <class T>
void check_case(const Case& c) {
  const char* where = c.name.c_str();
  const GsGeometry& g = c.g;
  const int dtype = sizeof(T) == 8 ? GS_FLOAT64 : GS_FLOAT32;
  const int64_t nnz = int64_t(c.indices.size()), pixels_in = volume(g.in), pixels = volume(g.out);
  const int64_t inputs = g.channels * pixels_in, outputs = g.outputs * pixels;
  // The pattern.
  std::vector<int64_t> row_ptr(size_t(g.outputs + 1)), col_ptr(size_t(g.channels * gs_phases(&g) + 1));
  std::vector<int32_t> row_cols(c.indices.size()), row_perm(row_cols), col_rows(row_cols), col_perm(row_cols);
  const GsPatternOut made{row_ptr.data(), row_cols.data(), row_perm.data(), col_ptr.data(), col_rows.data(),
                          col_perm.data()};
  CHECK(gs_pattern(&g, c.transposed, nnz, c.indices.data(), &made) == GS_OK);
  const GsPattern pattern{nnz, row_ptr.data(), c.transposed ? row_cols.data() : c.indices.data(),
                          c.transposed ? 0 : g.channels / g.groups * volume(g.kernel),
                          c.transposed ? row_perm.data() : nullptr, col_ptr.data(), col_rows.data(),
                          c.transposed ? nullptr : col_perm.data()};
  if (!c.transposed) check_samples<T>(c, pattern);
  // Inputs and the truth. Only a layer without space takes other strides.
  const bool matrix = pixels_in == 1 && pixels == 1 && volume(g.kernel) == 1 && volume(g.stride) == 1 &&
                      g.pad[0] == 0 && g.pad[1] == 0 && g.pad[2] == 0;
  const Strides at_x = strides(g.batch, inputs, matrix), at_g = strides(g.batch, outputs, matrix);
  const auto x = numbers<T>(at_x.count), gradient = numbers<T>(at_g.count);
  // One more than needed: an empty vector would be null, which means another call.
  const auto mean = numbers<T>(nnz + 1), variance = numbers<T>(nnz + 1, 0.0), bias = numbers<T>(g.outputs);
  const auto slope = numbers<T>(g.batch * outputs), gradient2 = numbers<T>(g.batch * outputs);
  const auto value = [&](int64_t b, int64_t i) { return double(x[size_t(b * at_x.row + i * at_x.column)]); };
  const auto upstream = [&](int64_t b, int64_t i) { return double(gradient[size_t(b * at_g.row + i * at_g.column)]); };
  const bool has_bias = pick(0, 1) == 1;
  std::vector<Sum> centre(size_t(g.batch * outputs)), spread(centre);
  if (has_bias)
    for (size_t i = 0; i < centre.size(); ++i) centre[i] += double(bias[i / size_t(pixels) % size_t(g.outputs)]);
  each_product(c, [&](size_t k, int64_t o, int64_t channel, int64_t out, int64_t in) {
    for (int64_t b = 0; b < g.batch; ++b) {
      const double here = value(b, channel * pixels_in + in);
      centre[size_t(b * outputs + o * pixels + out)] += double(mean[k]) * here;
      spread[size_t(b * outputs + o * pixels + out)] += double(variance[k]) * here * here;
    }
  });
  const uint64_t seed = 77;
  std::vector<T> normals(centre.size());  // normals.cpp tests them
  CHECK(gs_normal(dtype, seed, 0, int64_t(normals.size()), normals.data(), 1) == GS_OK);
  // What lies by feature, brought to the order of all else.
  const auto by_example = [&](const std::vector<T>& values, bool by_feature) {
    std::vector<T> found(values);
    const size_t batch = size_t(g.batch), features = values.size() / batch;
    for (size_t i = 0; by_feature && i < found.size(); ++i)
      found[i] = values[i % features * batch + i / features];
    return found;
  };
  // The slope of a layer without space: groups of 16 examples, by feature in each.
  const auto slope_by_example = [&](const std::vector<T>& values) {
    std::vector<T> found(values);
    const int64_t features = g.outputs;
    for (int64_t i = 0; matrix && i < int64_t(found.size()); ++i) {
      const int64_t b = i / features, start = b / 16 * 16, wide = std::min<int64_t>(16, g.batch - start);
      found[size_t(i)] = values[size_t(start * features + i % features * wide + b - start)];
    }
    return found;
  };
  const bool by_feature = matrix && pick(0, 1) == 1;
  for (Kind kind : {PRODUCT, MOMENTS, LOCAL}) {
    std::vector<T> first_y, first_second;
    for (int threads : {1, 2, 8}) {
      std::vector<T> y(centre.size(), T(NAN)), second(y);
      GsForward f{x.data(), at_x.row, at_x.column, mean.data(), kind == PRODUCT ? nullptr : variance.data(),
                  has_bias ? bias.data() : nullptr, y.data(), kind == PRODUCT ? nullptr : second.data(),
                  kind == LOCAL, seed, by_feature};
      CHECK(gs_forward(&g, &pattern, dtype, &f, threads) == GS_OK);
      y = by_example(y, by_feature);
      second = kind == LOCAL ? slope_by_example(second) : by_example(second, by_feature);
      if (threads > 1) {
        CHECK(same_bits(y, first_y));
        CHECK(kind == PRODUCT || same_bits(second, first_second));
        continue;
      }
      first_y = y;
      first_second = second;
      if (kind == LOCAL) {
        bool right = true;
        for (size_t i = 0; i < y.size(); ++i) {
          const double eps = double(normals[i]), root = std::sqrt(spread[i].value), loose = 3 * ROUNDING<T>;
          const double wanted = root > 0.0 ? 0.5 * eps / root : 0.0;
          const double size = centre[i].size + root * std::abs(eps) + 1e-3;
          right = right && std::abs(double(y[i]) - centre[i].value - root * eps) <= loose * size;
          right = right && std::abs(double(second[i]) - wanted) <=
                               (root > 0.0 ? loose * std::abs(eps) / root : 0.0);
        }
        CHECK(right);
        // The slope may be left out; the output is the same.
        std::fill(y.begin(), y.end(), T(NAN));
        f.y = y.data();
        f.second = nullptr;
        CHECK(gs_forward(&g, &pattern, dtype, &f, threads) == GS_OK);
        CHECK(same_bits(by_example(y, by_feature), first_y));
      } else {
        CHECK(close(y, centre));
        CHECK(kind == PRODUCT || close(second, spread));
      }
    }
  }
  for (Kind kind : {PRODUCT, MOMENTS, LOCAL}) {
    const auto slope_at = slope_by_example(slope);
    std::vector<Sum> dx(size_t(g.batch * inputs)), dmean(c.indices.size()), dvariance(dmean);
    each_product(c, [&](size_t k, int64_t o, int64_t channel, int64_t out, int64_t in) {
      for (int64_t b = 0; b < g.batch; ++b) {
        const int64_t to = o * pixels + out, from = channel * pixels_in + in;
        const double here = value(b, from), one = upstream(b, to);
        dmean[k] += one * here;
        dx[size_t(b * inputs + from)] += one * double(mean[k]);
        if (kind == PRODUCT) continue;
        const size_t flat = size_t(b * outputs + to);
        const double two = kind == LOCAL ? one * double(slope_at[flat]) : double(gradient2[flat]);
        dvariance[k] += two * here * here;
        dx[size_t(b * inputs + from)] += 2.0 * here * two * double(variance[k]);
      }
    });
    std::vector<T> first[3];
    for (int threads : {1, 2, 8})
      for (bool wants_dx : {true, false}) {
        std::vector<T> to_x(dx.size(), T(NAN)), to_mean(dmean.size(), T(NAN)), to_variance(to_mean);
        const GsBackward b{x.data(), at_x.row, at_x.column, mean.data(),
                           kind == PRODUCT ? nullptr : variance.data(), gradient.data(), at_g.row, at_g.column,
                           kind == LOCAL ? slope.data() : nullptr, kind == MOMENTS ? gradient2.data() : nullptr,
                           wants_dx ? to_x.data() : nullptr, to_mean.data(),
                           kind == PRODUCT ? nullptr : to_variance.data(), by_feature};
        CHECK(gs_backward(&g, &pattern, dtype, &b, threads) == GS_OK);
        to_x = by_example(to_x, by_feature);
        if (threads == 1 && wants_dx) {
          CHECK(close(to_x, dx));
          CHECK(close(to_mean, dmean));
          CHECK(kind == PRODUCT || close(to_variance, dvariance));
          first[0] = to_x, first[1] = to_mean, first[2] = to_variance;
        }
        CHECK(!wants_dx || same_bits(to_x, first[0]));
        CHECK(same_bits(to_mean, first[1]));
        CHECK(kind == PRODUCT || same_bits(to_variance, first[2]));
      }
  }
}

}  // namespace

void check_products(const GsGeometry& g, bool transposed, const std::vector<int32_t>& indices) {
  Case c{g, transposed, indices, ""};
  c.name = describe(c);
  random_engine.seed(11);
  gs_release();  // fresh workspace, which the address sanitizer fills with NaN
  check_case<float>(c);
  check_case<double>(c);
}
