#pragma once

#include "cuda/block/work_rows.cuh"

namespace mgpu::cuda::short_rows {

template <typename Index>
__global__ void __launch_bounds__(kRowThreads)
    search_objects(const __grid_constant__ ShortWork problem, int offsets_room, Index* objects, Index* ranks) {
  extern __shared__ __align__(16) unsigned char shared[];
  const WorkRows rows(problem, offsets_room, shared);
  const int64_t first = rows.tile.first * problem.work.size;
  for_each_slot(rows.tile, problem.size, [&](int slot, int row, int i) {
    rows.with_output(slot, row, i, [&](const RowOutput& output, int object, bool is_made) {
      objects[first + slot] = is_made ? object : -1;
      if (ranks) ranks[first + slot] = is_made ? i - output.start : -1;
    });
  });
}

}  // namespace mgpu::cuda::short_rows
