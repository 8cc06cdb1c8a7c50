// Where each row of the result comes from, for the kernels of move_rows.
#pragma once

#include "ops/bulk/operands.h"
#include "ops/move_rows/short_rows.cuh"

namespace mgpu::cuda {

template <bool kInserts>
struct BulkRoute {
  using Slot = NoSlot;
  static constexpr bool kNarrowOffsets = false;
  static constexpr bool fills = true;
  Rows x;
  Rows values;
  Fill fill;
  Rows out;

  template <int kRowBytes, typename Tile>
  __device__ char* out_row(const Tile& tile, int i) const {
    return out.of_problem(tile.problem) + (tile.begin + i) * width_of<kRowBytes>(out);
  }

  template <int kRowBytes, typename Tile>
  __device__ auto of_tile(const Tile& tile) const {
    const int64_t before = tile.before - tile.row.first + 1;  // items removed or inserted before the tile
    const int64_t origin = kInserts ? tile.begin - before : tile.begin + before;
    const char* const x_rows = x.of_problem(tile.problem) + origin * width_of<kRowBytes>(x);
    const char* const value_rows =
        values.of_problem(kInserts ? tile.problem : 0) + tile.before * width_of<kRowBytes>(values);
    char* const out_rows = out_row<kRowBytes>(tile, 0);
    return [=, this, &tile](int i, auto mark, bool is_made) {
      // Rows of x are numbered from `origin`, by numbers as wide as the marks of TileWork.
      using Row = std::conditional_t<sizeof(mark) == 4, int, int64_t>;
      constexpr int64_t kFar = int64_t{1} << (8 * sizeof(Row) - 2);
      const Row begin = static_cast<Row>(clamp(-origin, -kFar, kFar));
      const Row end = static_cast<Row>(clamp(x.count - origin, -kFar, kFar));
      const Row row = kInserts ? i - static_cast<Row>(mark) : i + static_cast<Row>(mark);
      const bool has_row = i < tile.live && row >= begin && row < end;
      bool is_value = false;
      if constexpr (kInserts) is_value = is_made & tile.is_first(i);
      const char* const from =
          is_value ? value_rows + mark * width_of<kRowBytes>(values) : x_rows + row * width_of<kRowBytes>(x);
      return RowMove{from, out_rows + i * width_of<kRowBytes>(out), is_value || has_row, true};
    };
  }
};

}  // namespace mgpu::cuda
