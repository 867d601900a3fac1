// The two orders of the kept weights, by counting sort.
#include <vector>

#include "guard.h"

namespace gs {
namespace {

struct Place {
  int64_t row, channel, tap;  // output channel, input channel of all, tap as the kernel applies it
};

// A flat position of the weight: [out, in / groups, *kernel], or transposed [in, out / groups,
// *kernel], where the kernel is applied backwards.
class Reader {
 public:
  Reader(const GsGeometry& g, bool transposed)
      : transposed_(transposed),
        taps_(volume(g.kernel)),
        per_row_((transposed ? g.outputs : g.channels) / g.groups),
        slow_per_group_((transposed ? g.channels : g.outputs) / g.groups) {}
  Place at(int64_t index) const {
    const int64_t tap = index % taps_, rest = index / taps_;
    const int64_t fast = rest % per_row_, slow = rest / per_row_;
    const int64_t group = slow / slow_per_group_;
    const int64_t other = group * per_row_ + fast;
    if (transposed_) return {other, slow, taps_ - 1 - tap};
    return {slow, other, tap};
  }

 private:
  bool transposed_;
  int64_t taps_, per_row_, slow_per_group_;
};

std::vector<int64_t> phase_of_taps(const GsGeometry& g) {
  std::vector<int64_t> found;
  int64_t tap[3];
  for (tap[0] = 0; tap[0] < g.kernel[0]; ++tap[0])
    for (tap[1] = 0; tap[1] < g.kernel[1]; ++tap[1])
      for (tap[2] = 0; tap[2] < g.kernel[2]; ++tap[2]) found.push_back(tap_phase(g, tap));
  return found;
}

void accumulate(int64_t* ptr, int64_t count) {
  for (int64_t i = 0; i < count; ++i) ptr[i + 1] += ptr[i];
}

}  // namespace
}  // namespace gs

GS_API int64_t gs_phases(const GsGeometry* g) { return gs::is_weight(g) ? gs::phases(*g) : 0; }

GS_API int gs_pattern(const GsGeometry* geometry, int transposed, int64_t nnz,
                      const int32_t* indices, const GsPatternOut* out) try {
  using namespace gs;
  if (!is_weight(geometry) || !are_there(nnz, {indices}) || !out || !out->row_ptr || !out->col_ptr ||
      !are_there(nnz, {out->col_rows}) ||
      !(transposed ? are_there(nnz, {out->row_cols, out->row_perm}) : are_there(nnz, {out->col_perm})))
    return GS_BAD_ARGUMENT;
  const GsGeometry& g = *geometry;
  const int64_t taps = volume(g.kernel), per_column = phases(g);
  const int64_t columns = g.channels * per_column, in_group = g.channels / g.groups;
  const int64_t numel = g.outputs * in_group * taps;
  const Reader reader(g, transposed != 0);
  const std::vector<int64_t> phase = phase_of_taps(g);
  std::fill(out->row_ptr, out->row_ptr + g.outputs + 1, 0);
  std::fill(out->col_ptr, out->col_ptr + columns + 1, 0);
  for (int64_t k = 0; k < nnz; ++k) {
    if (indices[k] < 0 || indices[k] >= numel || (k > 0 && indices[k] <= indices[k - 1]))
      return GS_BAD_ARGUMENT;
    const Place p = reader.at(indices[k]);
    ++out->row_ptr[p.row + 1];
    ++out->col_ptr[p.channel * per_column + phase[static_cast<size_t>(p.tap)] + 1];
  }
  accumulate(out->row_ptr, g.outputs);
  accumulate(out->col_ptr, columns);
  const bool by_rows = transposed == 0;  // the order of the indices is the forward order
  const int64_t* begin = by_rows ? out->col_ptr : out->row_ptr;
  std::vector<int64_t> next(begin, begin + (by_rows ? columns : g.outputs));
  for (int64_t k = 0; k < nnz; ++k) {
    const Place p = reader.at(indices[k]);
    const auto row = static_cast<int32_t>(p.row * taps + p.tap);
    if (by_rows) {
      const int64_t slot = next[static_cast<size_t>(p.channel * per_column + phase[static_cast<size_t>(p.tap)])]++;
      out->col_rows[slot] = row;
      out->col_perm[slot] = static_cast<int32_t>(k);
    } else {
      const int64_t slot = next[static_cast<size_t>(p.row)]++;
      out->row_cols[slot] = static_cast<int32_t>(p.channel % in_group * taps + p.tap);
      out->row_perm[slot] = static_cast<int32_t>(k);
      out->col_rows[k] = row;
    }
  }
  return GS_OK;
} catch (const std::bad_alloc&) {
  return GS_NO_MEMORY;
}
