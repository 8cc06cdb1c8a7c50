// Which row of x each row of the result is, for the kernels of move_rows.
#pragma once

#include "ops/move_rows/short_rows.cuh"
#include "ops/segmented_shift/operands.h"

namespace mgpu::cuda {

// All rows of a problem move in one direction, so one end of a segment suffices to tell which of its rows leave it.
// Index, the type of the heads, is known at compile time, because kernels that chose the width of reads at run time
// read out of bounds (docs/notes/reliability.md).
template <typename Index>
struct ShiftRoute {
  using Slot = Index;  // where the segment begins if rows move up, else where it ends
  static constexpr bool kNarrowOffsets = sizeof(Index) == sizeof(int32_t);
  static constexpr bool fills = true;
  SegmentedShiftOperands operands;
  Fill fill;

  explicit ShiftRoute(const SegmentedShiftOperands& operands) : operands(operands), fill(operands.fill) {}

  template <int kRowBytes, typename Tile>
  __device__ char* out_row(const Tile& tile, int i) const {
    return operands.out.of_problem(tile.problem) + (tile.begin + i) * width_of<kRowBytes>(operands.out);
  }

  template <typename Tile>
  __device__ auto slots_of(const Tile& tile) const {
    const WorkList& work = operands.work;
    return [heads = IndicesOf<Index>(work.offsets_of(tile.problem)).from(tile.before),
            is_up = operands.distance(tile.problem) > 0, last = work.objects - 1 - tile.before,
            live = static_cast<Index>(work.live(tile.problem))](auto h, auto offset) {
      if (is_up) return static_cast<Index>(offset);
      return h < last ? static_cast<Index>(minimum<int64_t>(heads[h + 1], live)) : live;
    };
  }

  template <int kRowBytes, typename Tile>
  __device__ auto of_tile(const Tile& tile) const {
    using Place = std::make_unsigned_t<Index>;
    const int64_t by = operands.distance(tile.problem);
    const Index origin = static_cast<Index>(tile.begin - by);
    const char* const rows = operands.x.of_problem(tile.problem);
    char* const out_rows = out_row<kRowBytes>(tile, 0);
    return [=, this](int i, Slot edge, bool is_made) {
      const Index source = origin + i;
      const bool is_inside = by > 0 ? source >= edge : source < edge;
      const bool has_source = is_made && is_inside && static_cast<Place>(source) < static_cast<Place>(operands.x.count);
      return RowMove{rows + source * width_of<kRowBytes>(operands.x), out_rows + i * width_of<kRowBytes>(operands.out),
                     has_source, true};
    };
  }
};

}  // namespace mgpu::cuda
