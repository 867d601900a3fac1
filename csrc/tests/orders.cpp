// The two orders of the kept weights against a sort, and indices that must be refused.
#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "../gossamer.h"

void fail(const char* file, int line, const char* what, const char* where);
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, where))

namespace {

GsGeometry geometry(int64_t channels, int64_t outputs, int64_t groups, const int64_t* kernel,
                    const int64_t* stride, const int64_t* dilation) {
  GsGeometry g{1, channels, outputs, groups, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
               {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
  for (int d = 0; d < 3; ++d) {
    g.kernel[d] = kernel[d];
    g.stride[d] = stride[d];
    g.dilation[d] = dilation[d];
    g.in[d] = (kernel[d] - 1) * dilation[d] + 1;
  }
  return g;
}

struct Arrays {
  std::vector<int64_t> row_ptr, col_ptr;
  std::vector<int32_t> row_cols, row_perm, col_rows, col_perm;
  Arrays(const GsGeometry& g, size_t nnz)
      : row_ptr(size_t(g.outputs + 1)), col_ptr(size_t(g.channels * gs_phases(&g) + 1)),
        row_cols(nnz, -7), row_perm(nnz, -7), col_rows(nnz, -7), col_perm(nnz, -7) {}
  GsPatternOut out() {
    return {row_ptr.data(), row_cols.data(), row_perm.data(), col_ptr.data(), col_rows.data(), col_perm.data()};
  }
};

// (column, output channel * taps + tap, place in the indices), by division alone.
std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> entries(const GsGeometry& g, bool transposed,
                                                                    const std::vector<int32_t>& indices) {
  const int64_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> found;
  for (size_t k = 0; k < indices.size(); ++k) {
    const int64_t width = (transposed ? g.outputs : g.channels) / g.groups;
    const int64_t height = (transposed ? g.channels : g.outputs) / g.groups;
    const int64_t slow = indices[k] / (taps * width), fast = indices[k] / taps % width;
    const int64_t other = slow / height * width + fast;
    const int64_t o = transposed ? other : slow, c = transposed ? slow : other;
    int64_t tap = indices[k] % taps;
    if (transposed) tap = taps - 1 - tap;
    const int64_t at[3] = {tap / (g.kernel[1] * g.kernel[2]), tap / g.kernel[2] % g.kernel[1], tap % g.kernel[2]};
    int64_t phase = 0;
    for (int d = 0; d < 3; ++d) phase = phase * g.stride[d] + at[d] * g.dilation[d] % g.stride[d];
    found.emplace_back(c * gs_phases(&g) + phase, o, tap, int64_t(k));
  }
  return found;
}

void check_orders(const GsGeometry& g, bool transposed, const std::vector<int32_t>& indices) {
  const char* where = transposed ? "pattern, transposed" : "pattern";
  const int64_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2], in_group = g.channels / g.groups;
  Arrays a(g, indices.size());
  const GsPatternOut out = a.out();
  CHECK(gs_pattern(&g, transposed, int64_t(indices.size()), indices.data(), &out) == GS_OK);
  const auto all = entries(g, transposed, indices);
  CHECK(a.row_ptr.front() == 0 && a.row_ptr.back() == int64_t(indices.size()));
  CHECK(a.col_ptr.front() == 0 && a.col_ptr.back() == int64_t(indices.size()));
  CHECK(std::is_sorted(a.row_ptr.begin(), a.row_ptr.end()));
  CHECK(std::is_sorted(a.col_ptr.begin(), a.col_ptr.end()));
  // Forward: row o's slots hold exactly its weights; backward: the same of columns, by output.
  std::vector<bool> seen(indices.size(), false);
  for (int64_t o = 0; o < g.outputs; ++o)
    for (int64_t slot = a.row_ptr[size_t(o)]; slot < a.row_ptr[size_t(o + 1)]; ++slot) {
      const int64_t k = transposed ? a.row_perm[size_t(slot)] : slot;
      const auto& [column, row, tap, place] = all[size_t(k)];
      CHECK(row == o && !seen[size_t(k)]);
      seen[size_t(k)] = true;
      if (transposed) CHECK(a.row_cols[size_t(slot)] == column / gs_phases(&g) % in_group * taps + tap);
    }
  CHECK(std::count(seen.begin(), seen.end(), true) == int64_t(seen.size()));
  std::fill(seen.begin(), seen.end(), false);
  for (size_t column = 0; column + 1 < a.col_ptr.size(); ++column)
    for (int64_t slot = a.col_ptr[column]; slot < a.col_ptr[column + 1]; ++slot) {
      const int64_t k = transposed ? slot : a.col_perm[size_t(slot)];
      const auto& [mine, row, tap, place] = all[size_t(k)];
      CHECK(mine == int64_t(column) && a.col_rows[size_t(slot)] == row * taps + tap && !seen[size_t(k)]);
      seen[size_t(k)] = true;
      if (slot > a.col_ptr[column])  // blocks of rows are cut by this order
        CHECK(a.col_rows[size_t(slot - 1)] / taps <= row);
    }
  CHECK(std::count(seen.begin(), seen.end(), true) == int64_t(seen.size()));
  // What the other order does not need is left alone.
  const auto& untouched = transposed ? a.col_perm : a.row_perm;
  CHECK(std::count(untouched.begin(), untouched.end(), -7) == int64_t(untouched.size()));
}

void check_refusals() {
  const char* where = "refusals";
  const int64_t kernel[] = {1, 1, 3}, one[] = {1, 1, 1};
  const GsGeometry g = geometry(4, 6, 2, kernel, one, one);  // 36 weights
  const std::vector<std::vector<int32_t>> bad{{-1}, {36}, {0, 36}, {-1, 0}, {3, 3}, {5, 4}, {0, 1, 2, 1},
                                              {INT32_MAX}, {INT32_MIN}, {7, 35, 36}, {0, 35, 35}};
  for (int transposed : {0, 1})
    for (const auto& indices : bad) {
      Arrays a(g, indices.size());
      const GsPatternOut out = a.out();
      CHECK(gs_pattern(&g, transposed, int64_t(indices.size()), indices.data(), &out) == GS_BAD_ARGUMENT);
    }
  GsGeometry empty = g;
  empty.batch = 0;
  const GsPattern none{};
  const GsForward forward{};
  const GsBackward backward{};
  CHECK(gs_forward(&empty, &none, GS_FLOAT32, &forward, 1) == GS_BAD_ARGUMENT);
  CHECK(gs_backward(&empty, &none, GS_FLOAT32, &backward, 1) == GS_BAD_ARGUMENT);
  // Only a layer without space has features to go by.
  GsForward strange_forward{};
  GsBackward strange_backward{};
  strange_forward.y_by_feature = strange_backward.dx_by_feature = 1;
  CHECK(gs_forward(&g, &none, GS_FLOAT32, &strange_forward, 1) == GS_BAD_ARGUMENT);
  CHECK(gs_backward(&g, &none, GS_FLOAT32, &strange_backward, 1) == GS_BAD_ARGUMENT);
}

}  // namespace

void test_pattern() {
  std::mt19937 random(3);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const bool transposed = round % 3 == 0;
    int64_t kernel[3], stride[3], dilation[3];
    for (int d = 0; d < 3; ++d) {
      kernel[d] = pick(1, 3);
      stride[d] = transposed ? 1 : pick(1, 3);
      dilation[d] = pick(1, 3);
    }
    const int64_t groups = pick(1, 3);
    const GsGeometry g = geometry(groups * pick(1, 4), groups * pick(1, 4), groups, kernel, stride, dilation);
    const int64_t numel = g.outputs * (g.channels / groups) * kernel[0] * kernel[1] * kernel[2];
    const int64_t keep = pick(0, 4);  // of 4; none and all included
    std::vector<int32_t> indices;
    for (int64_t i = 0; i < numel; ++i)
      if (pick(1, 4) <= keep) indices.push_back(int32_t(i));
    check_orders(g, transposed, indices);
  }
  check_refusals();
}
