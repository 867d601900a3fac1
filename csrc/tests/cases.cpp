// The layers that products.cpp checks: random shapes, corners, and shapes that make the engine work in
// blocks.
#include <algorithm>
#include <random>
#include <vector>

#include "../gossamer.h"

void fail(const char* file, int line, const char* what, const char* where);
void check_products(const GsGeometry& g, bool transposed, const std::vector<int32_t>& indices);
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition, where))

namespace {

std::mt19937 random_engine;
int64_t pick(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_engine);
}
int64_t volume(const int64_t* d) { return d[0] * d[1] * d[2]; }

struct Case {
  GsGeometry g;
  bool transposed;
  std::vector<int32_t> indices;
};

void keep_some(Case& c, double density) {
  const int64_t numel = c.g.outputs * (c.g.channels / c.g.groups) * volume(c.g.kernel);
  std::bernoulli_distribution coin(density);
  for (int64_t i = 0; i < numel; ++i)
    if (coin(random_engine)) c.indices.push_back(static_cast<int32_t>(i));
}

Case blank(int64_t batch, int64_t channels, int64_t outputs, int64_t groups) {
  return {{batch, channels, outputs, groups, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
           {0, 0, 0}}, false, {}};
}

// One spatial dimension; false where no output is left. The padding after may differ from the one
// before, and both may crop.
bool set_dimension(Case& c, int d, int64_t size, int64_t kernel, int64_t step, int64_t dilation, int64_t low,
                   int64_t high) {
  GsGeometry& g = c.g;
  g.in[d] = size;
  g.kernel[d] = kernel;
  g.dilation[d] = dilation;
  const int64_t reach = (kernel - 1) * dilation;
  if (c.transposed) {
    g.up[d] = step;
    g.pad[d] = reach - low;  // low: torch's padding; high: what output_padding adds
    g.out[d] = (size - 1) * step + reach + 1 - 2 * low + high;
    return g.out[d] >= 1;
  }
  g.stride[d] = step;
  g.pad[d] = low;
  const int64_t left = size + low + high - reach - 1;
  g.out[d] = left / step + 1;
  return left >= 0;
}

Case random_case() {
  static const int64_t BATCHES[] = {1, 2, 3, 7, 8, 9, 16, 17, 33, 40};
  for (;;) {
    const int64_t groups = pick(0, 2) ? 1 : pick(2, 3), dims = pick(0, 3);
    Case c = blank(BATCHES[pick(0, 9)], groups * pick(1, 5), groups * pick(1, 6), groups);
    c.transposed = dims > 0 && pick(0, 2) == 0;
    bool ok = true;
    const bool plain = pick(0, 1) == 0;  // stride 1, usual padding: half of all cases
    for (int64_t i = 0; i < dims; ++i) {
      const int64_t kernel = pick(1, 3), step = plain ? 1 : pick(1, 3), dilation = pick(1, 3);
      const int64_t reach = (kernel - 1) * dilation;
      int64_t low, high;
      if (c.transposed) {
        low = plain ? pick(0, reach / 2) : pick(0, reach + 1);
        high = pick(0, std::max(step, dilation) - 1);
      } else {
        low = plain ? pick(0, reach) : pick(-2, reach + 2);
        high = plain ? pick(0, reach) : pick(-2, reach + 2);
      }
      ok = set_dimension(c, int(3 - dims + i), pick(1, dims == 3 ? 5 : 12), kernel, step, dilation, low, high) && ok;
    }
    if (!ok) continue;
    keep_some(c, double(pick(0, 10)) / 10.0);
    return c;
  }
}

// One kernel, step, dilation and padding for all dimensions.
Case cube(bool transposed, int dims, int64_t size, int64_t kernel, int64_t step, int64_t dilation, int64_t low,
          int64_t high) {
  Case c = blank(3, 4, 5, 1);
  c.transposed = transposed;
  for (int d = 3 - dims; d < 3; ++d) set_dimension(c, d, size, kernel, step, dilation, low, high);
  keep_some(c, 0.6);
  return c;
}

}  // namespace

void test_random(int cases) {
  random_engine.seed(11);
  for (int i = 0; i < cases; ++i) {
    const Case c = random_case();
    check_products(c.g, c.transposed, c.indices);
  }
}

// Shapes that a random choice seldom meets.
void test_corners() {
  random_engine.seed(12);
  for (int dims = 1; dims <= 3; ++dims) {
    const Case corners[] = {
        cube(false, dims, 1, 1, 2, 1, 0, 0),  // one pixel, strided: several phases, no space
        cube(false, dims, 1, 1, 1, 3, 0, 0),
        cube(false, dims, 1, 3, 1, 1, 1, 1),  // nothing but padding around one pixel
        cube(false, dims, 4, 1, 3, 1, 0, 0),  // inputs that no output reads
        cube(false, dims, 5, 3, 1, 1, 2, 2),
        cube(false, dims, 6, 2, 1, 1, 1, -2),  // cropped behind, padded before
        cube(false, dims, 6, 2, 1, 1, -2, 1),
        cube(false, dims, 3, 2, 2, 1, 4, 4),  // outputs that read padding alone
        cube(true, dims, 1, 1, 2, 1, 0, 1),
        cube(true, dims, 3, 1, 3, 1, 0, 2),   // outputs that no input reaches
        cube(true, dims, 3, 2, 1, 3, 1, 2),   // output padding without a stride
        cube(true, dims, 3, 3, 1, 2, 0, 1),
        cube(true, dims, 4, 2, 1, 1, 2, 1),   // padding beyond the kernel: crops
    };
    for (const Case& c : corners) check_products(c.g, c.transposed, c.indices);
  }
}

// Shapes that make the engine work in blocks, in groups of tiles, or refuse.
void test_large() {
  random_engine.seed(13);
  Case wide = blank(130, 1500, 21, 1);  // channels in blocks
  keep_some(wide, 0.02);
  Case tall = blank(130, 21, 1500, 1);  // outputs in blocks
  keep_some(tall, 0.02);
  Case many = blank(1030, 5, 4, 1);  // groups of tiles of rows
  keep_some(many, 0.5);
  Case deep = blank(3, 150, 10, 2);  // a convolution in blocks of channels
  set_dimension(deep, 1, 14, 3, 1, 1, 1, 1);
  set_dimension(deep, 2, 14, 3, 1, 1, 1, 1);
  keep_some(deep, 0.02);
  Case broad = blank(2, 4, 300, 1);  // and of outputs
  set_dimension(broad, 1, 14, 3, 1, 1, 1, 1);
  set_dimension(broad, 2, 14, 3, 1, 1, 1, 1);
  keep_some(broad, 0.02);
  Case strided = blank(70, 6, 6, 3);  // groups of tiles of examples
  set_dimension(strided, 1, 9, 3, 2, 1, 1, 1);
  set_dimension(strided, 2, 8, 3, 2, 1, 1, 1);
  keep_some(strided, 0.3);
  Case tokens = blank(77, 20, 128, 1);  // whole blocks of noise, in vectors of examples and what is left
  keep_some(tokens, 0.04);
  for (const Case& c : {wide, tall, many, deep, broad, strided, tokens}) check_products(c.g, c.transposed, c.indices);

  const char* where = "a side beyond 32-bit offsets";
  Case huge = blank(1, 1, 1, 1);
  set_dimension(huge, 2, int64_t{1} << 32, 2, 1, (int64_t{1} << 32) - 1, 0, 0);
  huge.indices = {0, 1};
  int64_t row_ptr[2] = {0, 2}, col_ptr[2] = {0, 2};
  int32_t col_rows[2] = {0, 0}, col_perm[2] = {0, 1};
  float one[2] = {1.0f, 1.0f};
  const GsPatternOut made{row_ptr, nullptr, nullptr, col_ptr, col_rows, col_perm};
  CHECK(gs_pattern(&huge.g, 0, 2, huge.indices.data(), &made) == GS_BAD_ARGUMENT);
  const GsPattern pattern{2, row_ptr, huge.indices.data(), 2, nullptr, col_ptr, col_rows, col_perm};
  const GsForward f{one, 1, 1, one, nullptr, nullptr, one, nullptr, 0, 0, 0};
  CHECK(gs_forward(&huge.g, &pattern, GS_FLOAT32, &f, 1) == GS_BAD_ARGUMENT);
}
