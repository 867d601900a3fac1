// From the shape of a call to tables of offsets: which lane is which output, where it reads.
//
// Three packings of the input, one kernel:
//   ROWS   no space: lanes are examples.           X[channel][vector of examples]
//   BATCH  lanes are examples, a vector per pixel. X[channel][padded pixel][examples]
//   FLAT   lanes are pixels of one example; rows of the padded image follow each other, so that a
//          vector may run across the end of a row: X[channel][row * pitch + column].
// FLAT needs no transposes but stride 1, and wastes the lanes that fall between rows.
//
// Everything here depends on the shape and the number of lanes only, never on the number of threads:
// the order of every sum is fixed by it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "gossamer.h"

namespace gs {

enum Mode { ROWS, BATCH, FLAT };

constexpr int64_t SLAB_VECTORS = 10 * 1024;  // of a packed tile, meant to stay in L2
constexpr int64_t MIN_BLOCK = 64;            // vectors of positions per block, at least
constexpr int64_t TILE_EXAMPLES = 128;       // of ROWS, at most
constexpr int64_t SLOPE_GROUP = 16;         // examples of ROWS whose slopes lie together: whole vectors of any width

struct TooLarge : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a core's L2 is taken to hold of a packed tile; wider registers come with larger caches.
inline int64_t slab_bytes(int64_t lanes, int64_t item) { return SLAB_VECTORS * lanes * item; }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline int64_t volume(const int64_t* d) { return d[0] * d[1] * d[2]; }

inline int32_t narrow(int64_t offset) {
  if (offset < 0 || offset > INT32_MAX) throw TooLarge("a packed tile has more than 2^31 values");
  return static_cast<int32_t>(offset);
}

inline bool has_no_space(const GsGeometry& g) {
  return volume(g.in) == 1 && volume(g.out) == 1 && volume(g.kernel) == 1 && g.pad[0] == 0 &&
         g.pad[1] == 0 && g.pad[2] == 0 && volume(g.stride) == 1;
}

// Extent of the padded input that outputs read.
inline int64_t extent(const GsGeometry& g, int d) {
  return (g.out[d] - 1) * g.stride[d] + (g.kernel[d] - 1) * g.dilation[d] + 1;
}
// Zeros before and after the outputs' gradient that shifted reads meet, per side.
inline int64_t reach(const GsGeometry& g, int d) {
  return (g.kernel[d] - 1) * g.dilation[d] / g.stride[d];
}

inline int64_t phases(const GsGeometry& g) { return volume(g.stride); }

// The phase of a tap: which inputs modulo the stride it meets.
inline int64_t tap_phase(const GsGeometry& g, const int64_t* tap) {
  int64_t phase = 0;
  for (int d = 0; d < 3; ++d) phase = phase * g.stride[d] + (tap[d] * g.dilation[d]) % g.stride[d];
  return phase;
}

// How much of the lanes in use of BATCH must be in use under FLAT to choose it: one lane in twelve
// wasted is what the transposes of BATCH cost.
constexpr double FLAT_SHARE = 0.92;

inline Mode choose_mode(const GsGeometry& g, int64_t lanes) {
  if (has_no_space(g)) return ROWS;
  for (int d = 0; d < 3; ++d) {
    const int64_t before = g.pad[d], after = extent(g, d) - g.pad[d] - g.in[d];
    if (g.stride[d] != 1 || g.up[d] != 1 || std::min(before, after) < 0 ||
        std::max(before, after) > reach(g, d))
      return BATCH;
  }
  const int64_t pitch = std::max(g.in[2] + g.pad[2], extent(g, 2) - g.pad[2]);
  const int64_t flat = (g.out[1] - 1) * pitch + g.out[2];
  const double in_flat = double(g.out[1] * g.out[2]) / double(round_up(flat, lanes));
  const double in_batch = double(g.batch) / double(round_up(g.batch, lanes));
  return in_flat >= FLAT_SHARE * in_batch ? FLAT : BATCH;
}

// What forward and backward share.
struct Plan {
  Mode mode;
  int64_t lanes;
  int64_t examples;  // per tile
  int64_t tiles;
};

// Tiles of ROWS take at most so many vectors of examples.
inline Plan make_plan(const GsGeometry& g, int64_t lanes, int64_t vectors) {
  Plan plan;
  plan.mode = choose_mode(g, lanes);
  plan.lanes = lanes;
  if (plan.mode == ROWS) {
    const int64_t most = std::max<int64_t>(std::min(TILE_EXAMPLES / lanes, vectors), 1) * lanes;
    plan.examples = std::min(most, round_up(g.batch, lanes));
  } else {
    plan.examples = plan.mode == BATCH ? lanes : 1;
  }
  plan.tiles = ceil_div(g.batch, plan.examples);
  return plan;
}

struct ForwardPlan : Plan {
  int64_t plane;                 // values of one channel in a tile
  int64_t pitch;                 // of FLAT
  std::vector<int32_t> position; // [positions] of an output vector
  std::vector<int32_t> column;   // [channels per group * taps]
  int64_t block_positions;       // vectors per block
  int64_t block_channels;        // channels per block
  int64_t blocks;                // of channels, in a group
};

// `vectors`: what one pass over a row's weights sums. A tile of no more examples is the smallest that
// the cache has to hold.
inline ForwardPlan forward_plan(const GsGeometry& g, int64_t lanes, int64_t item, int64_t vectors) {
  ForwardPlan plan;
  static_cast<Plan&>(plan) = make_plan(g, lanes, vectors);
  const int64_t taps = volume(g.kernel), per_group = g.channels / g.groups;
  int64_t step[3] = {0, 0, 0};  // of one place in the padded input
  int64_t span = 0;             // values of a channel that one position's taps span
  if (plan.mode == ROWS) {
    plan.plane = plan.examples;
    for (int64_t i = 0; i < plan.examples / lanes; ++i) plan.position.push_back(narrow(i * lanes));
  } else if (plan.mode == BATCH) {
    step[2] = lanes;
    step[1] = extent(g, 2) * step[2];
    step[0] = extent(g, 1) * step[1];
    plan.plane = extent(g, 0) * step[0];
    for (int64_t z = 0; z < g.out[0]; ++z)
      for (int64_t y = 0; y < g.out[1]; ++y)
        for (int64_t x = 0; x < g.out[2]; ++x)
          plan.position.push_back(narrow(z * g.stride[0] * step[0] + y * g.stride[1] * step[1] +
                                         x * g.stride[2] * step[2]));
  } else {
    plan.pitch = std::max(g.in[2] + g.pad[2], extent(g, 2) - g.pad[2]);
    step[2] = 1;
    step[1] = plan.pitch;
    step[0] = extent(g, 1) * plan.pitch;
    const int64_t per_image = ceil_div((g.out[1] - 1) * plan.pitch + g.out[2], lanes);
    for (int64_t z = 0; z < g.out[0]; ++z)
      for (int64_t v = 0; v < per_image; ++v) plan.position.push_back(narrow(z * step[0] + v * lanes));
  }
  for (int d = 0; d < 3; ++d) span += (g.kernel[d] - 1) * g.dilation[d] * step[d];
  if (plan.mode == FLAT) plan.plane = round_up(plan.position.back() + lanes + span, lanes);
  for (int64_t c = 0; c < per_group; ++c)
    for (int64_t z = 0; z < g.kernel[0]; ++z)
      for (int64_t y = 0; y < g.kernel[1]; ++y)
        for (int64_t x = 0; x < g.kernel[2]; ++x)
          plan.column.push_back(narrow(c * plan.plane + z * g.dilation[0] * step[0] +
                                       y * g.dilation[1] * step[1] + x * g.dilation[2] * step[2]));
  narrow(g.channels * plan.plane);
  const int64_t positions = static_cast<int64_t>(plan.position.size());
  const int64_t per_position = std::max<int64_t>(plan.plane / positions, 1);
  const int64_t bytes = slab_bytes(lanes, item);
  const int64_t fit = (bytes / (per_group * item) - span) / per_position;
  plan.block_positions = std::min(positions, std::max(fit, MIN_BLOCK));
  const int64_t slab = plan.block_positions * per_position + span;
  plan.block_channels =
      std::min(per_group, std::max<int64_t>(bytes / (slab * item), ceil_div(8, taps)));
  plan.blocks = ceil_div(per_group, plan.block_channels);
  return plan;
}

// A set of input positions that see the same taps.
struct Phase {
  std::vector<int32_t> x;  // [positions] in a channel of the tile of inputs
  std::vector<int32_t> g;  // [positions] in a channel of the tile of gradients
};

struct BackwardPlan : Plan {
  int64_t x_plane, g_plane, pitch;
  bool paired;                 // a vector of the variance's gradient follows each of the mean's
  int64_t g_place[3];          // of the first output in the padded gradient
  int64_t g_step[3];           // of one place in it
  std::vector<Phase> phase;
  std::vector<int32_t> row;    // [outputs * taps]
  int64_t block_positions, block_rows;
  bool covers_input;           // every input is in some phase
  int64_t groups_of_tiles;     // with sums of their own
};

inline BackwardPlan backward_plan(const GsGeometry& g, int64_t lanes, int64_t item, bool dual,
                                  int64_t nnz) {
  BackwardPlan plan;
  // Small tiles, unless gradients leave the cache all the same: every tile reads all weights.
  const bool fits = g.outputs * 8 * lanes * item * 2 <= 4 * slab_bytes(lanes, item);
  static_cast<Plan&>(plan) = make_plan(g, lanes, fits ? 8 : TILE_EXAMPLES / lanes);
  const int64_t taps = volume(g.kernel), inputs = volume(g.in);
  const int64_t count = phases(g);
  plan.paired = dual && plan.mode == BATCH;
  plan.phase.resize(static_cast<size_t>(plan.mode == BATCH ? count : 1));
  plan.covers_input = true;
  int64_t size[3], tap_step[3], span = 0;
  for (int d = 0; d < 3; ++d) size[d] = (extent(g, d) - 1) / g.stride[d] + reach(g, d) + 1;
  if (plan.mode == ROWS) {
    plan.x_plane = plan.examples;
    plan.g_plane = plan.examples;
    for (int64_t i = 0; i < plan.examples / lanes; ++i) {
      plan.phase[0].x.push_back(narrow(i * lanes));
      plan.phase[0].g.push_back(narrow(i * lanes));
    }
    for (int d = 0; d < 3; ++d) plan.g_step[d] = plan.g_place[d] = 0;
  } else if (plan.mode == BATCH) {
    plan.g_step[2] = plan.paired ? 2 * lanes : lanes;
    plan.g_step[1] = size[2] * plan.g_step[2];
    plan.g_step[0] = size[1] * plan.g_step[1];
    plan.g_plane = size[0] * plan.g_step[0];
    plan.x_plane = inputs * lanes;
    for (int d = 0; d < 3; ++d) plan.g_place[d] = reach(g, d);
    int64_t i[3], place = 0;
    for (i[0] = 0; i[0] < g.in[0]; ++i[0])
      for (i[1] = 0; i[1] < g.in[1]; ++i[1])
        for (i[2] = 0; i[2] < g.in[2]; ++i[2], ++place) {
          int64_t phase = 0, at = 0;
          bool inside = true;
          for (int d = 0; d < 3; ++d) {
            const int64_t q = g.pad[d] + i[d] * g.up[d];
            inside = inside && q >= 0 && q < extent(g, d);
            phase = phase * g.stride[d] + (q % g.stride[d]);
            at += q / g.stride[d] * plan.g_step[d];
          }
          plan.covers_input = plan.covers_input && inside;
          if (!inside) continue;
          plan.phase[static_cast<size_t>(phase)].x.push_back(narrow(place * lanes));
          plan.phase[static_cast<size_t>(phase)].g.push_back(narrow(at));
        }
  } else {
    for (int d = 0; d < 3; ++d) plan.g_place[d] = reach(g, d) - g.pad[d];
    plan.pitch = std::max(plan.g_place[2] + g.out[2], g.in[2] + reach(g, 2) - plan.g_place[2]);
    plan.pitch = std::max(plan.pitch, g.in[2]);
    plan.g_step[2] = 1;
    plan.g_step[1] = plan.pitch;
    plan.g_step[0] = (g.in[1] + reach(g, 1)) * plan.pitch;
    const int64_t vectors = ceil_div((g.in[1] - 1) * plan.pitch + g.in[2], lanes);
    for (int64_t z = 0; z < g.in[0]; ++z)
      for (int64_t v = 0; v < vectors; ++v) {
        plan.phase[0].x.push_back(narrow((z * vectors + v) * lanes));
        plan.phase[0].g.push_back(narrow(z * plan.g_step[0] + v * lanes));
      }
    plan.x_plane = g.in[0] * vectors * lanes;
    // The last outputs must have a place too, though no vector may read them.
    const int64_t last = (plan.g_place[0] + g.out[0] - 1) * plan.g_step[0] +
                         (plan.g_place[1] + g.out[1] - 1) * plan.pitch + plan.g_place[2] + g.out[2];
    int64_t reading = plan.phase[0].g.back() + lanes;
    for (int d = 0; d < 3; ++d) reading += reach(g, d) * plan.g_step[d];
    plan.g_plane = round_up(std::max(last, reading), lanes);
  }
  for (int d = 0; d < 3; ++d) {
    tap_step[d] = plan.g_step[d];
    span += reach(g, d) * plan.g_step[d];
  }
  for (int64_t o = 0; o < g.outputs; ++o)
    for (int64_t z = 0; z < g.kernel[0]; ++z)
      for (int64_t y = 0; y < g.kernel[1]; ++y)
        for (int64_t x = 0; x < g.kernel[2]; ++x) {
          const int64_t tap[3] = {z, y, x};
          int64_t at = o * plan.g_plane;
          for (int d = 0; d < 3; ++d)
            at += (reach(g, d) - tap[d] * g.dilation[d] / g.stride[d]) * tap_step[d];
          plan.row.push_back(narrow(at));
        }
  narrow(g.outputs * plan.g_plane);
  narrow(g.channels * plan.x_plane);
  const int64_t positions = static_cast<int64_t>(plan.phase[0].x.size());
  const int64_t per_group = g.outputs / g.groups;
  const int64_t per_position =
      std::max<int64_t>((plan.g_plane - span) / std::max<int64_t>(positions, 1), 1);
  const int64_t bytes = slab_bytes(lanes, item);
  const int64_t fit = (bytes / (per_group * item) - span) / per_position;
  plan.block_positions = std::max(fit, MIN_BLOCK);
  const int64_t slab = std::min(plan.block_positions, std::max<int64_t>(positions, 1)) * per_position + span;
  plan.block_rows = std::max<int64_t>(bytes / (slab * item), ceil_div(8, taps));
  const int64_t groups = std::min<int64_t>(plan.tiles, 8), room = int64_t{32} << 20;
  plan.groups_of_tiles = groups * (dual ? 2 : 1) * nnz * item <= room ? groups : 1;
  return plan;
}

}  // namespace gs
