// The second kernel, for the segments that the first ends of tiles close.
#pragma once

#include "ops/reduce_rows/reduction.cuh"

namespace mgpu::cuda::row_reducing {

constexpr int kJoinThreads = 512;
constexpr int kJoinLeastLanes = 8;  // the fewest lanes that join_tiles gives a tile
constexpr int kJoinSerial = 16;     // tiles of a segment that a lane joins; if there are more, the whole block does

// For each segment that a tile's first end closes: combines the states that earlier tiles left
// open with the tile's own part. A tile has a power of two of lanes, and a lane one column.
template <typename Operator>
__global__ void __launch_bounds__(kJoinThreads)
    join_tiles(RowReduction<Operator> reduction, Operator op, int lane_bits) {
  using State = typename Operator::State;
  __shared__ State parts[kJoinThreads];
  // The tiles of long segments, which the whole block joins.
  __shared__ int long_tiles[kJoinThreads / kJoinLeastLanes];
  __shared__ int long_count;
  const int64_t width = reduction.sources.width;
  const int lanes = 1 << lane_bits;
  const auto slices = static_cast<unsigned>(ceil_div<int64_t>(width, lanes));
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_tile = int64_t{blockIdx.x / slices} * (kJoinThreads >> lane_bits);
  const int64_t first_column = int64_t{blockIdx.x % slices} << lane_bits;
  if (thread == 0) long_count = 0;
  __syncthreads();
  wait_for_last_kernel();

  const auto add_tiles = [&](int64_t begin, int64_t end, int step, int64_t column) {
    State state = op.identity();
#pragma unroll 8
    for (int64_t i = begin; i < end; i += step) state = op.combine(state, reduction.open[i * width + column]);
    return state;
  };
  const auto store = [&](const SplitSegment& split, int64_t column, State before, State last) {
    const State state[1] = {op.combine(before, last)};
    const int64_t entry = reduction.tiles.ends.entry(split.end);
    store_result<1>(reduction, op, entry * width + column, {column, 1, 1}, state);
  };

  const int64_t tile = first_tile + (thread >> lane_bits), column = first_column + (thread & (lanes - 1));
  // Loads at once what may be needed.
  State before = op.identity(), last = op.identity();
  SplitSegment split{-1, 0};
  if (tile < reduction.tiles.tiles) {
    split = reduction.split[tile];
    if (tile > 0 && column < width) {
      before = reduction.open[(tile - 1) * width + column];
      last = reduction.opening[tile * width + column];
    }
  }
  if (split.end >= 0) {
    if (tile - split.first_tile > kJoinSerial) {
      if (column == first_column) long_tiles[atomicAdd(&long_count, 1)] = thread >> lane_bits;
    } else if (column < width) {
      store(split, column, op.combine(add_tiles(split.first_tile, tile - 1, 1, column), before), last);
    }
  }
  __syncthreads();
  // The block's threads form a table with the columns of the slice. The table's rows share the tiles of a segment.
  const int columns = static_cast<int>(minimum<int64_t>(width - first_column, lanes));
  const int rows = kJoinThreads / columns, row = thread / columns;
  for (int i = 0; i < long_count; ++i) {
    const int64_t long_tile = first_tile + long_tiles[i], long_column = first_column + thread % columns;
    const SplitSegment long_split = reduction.split[long_tile];
    if (row < rows) parts[thread] = add_tiles(long_split.first_tile + row, long_tile, rows, long_column);
    __syncthreads();
    int left = rows;
    while (left > 1) {
      const int half = (left + 1) / 2;
      if (row + half < left) parts[thread] = op.combine(parts[thread], parts[thread + half * columns]);
      left = half;
      __syncthreads();
    }
    if (row == 0) store(long_split, long_column, parts[thread], reduction.opening[long_tile * width + long_column]);
    __syncthreads();
  }
}

}  // namespace mgpu::cuda::row_reducing
