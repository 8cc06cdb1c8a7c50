// A row's states are in shared memory, and a few threads scan them.
#pragma once

#include "algorithm/segments.h"
#include "cuda/block/row_scan.cuh"
#include "ops/common/operators.h"

namespace mgpu::cuda::short_rows {

template <typename Operator>
struct Scan {
  RowTiles tiles;
  const typename Operator::Element* x;
  Segments segments;
  Divisor length;
  int pitch;  // states from row to row in shared memory
  int share;  // states of a row per thread
  bool exclusive;
  bool reverse;
  ResultVector<Operator> result;
  ResultVector<Operator> totals;  // null if not requested

  size_t shared_bytes() const {
    return shared_room(segments.length, pitch, tiles.tile_rows) * sizeof(typename Operator::State);
  }
};

template <typename Operator>
__global__ void __launch_bounds__(kRowThreads) scan(const __grid_constant__ Scan<Operator> problem, Operator op) {
  using State = typename Operator::State;
  extern __shared__ __align__(16) unsigned char shared[];
  const Segments& segments = problem.segments;
  const RowTile tile(problem.tiles);
  const SharedRows<State> states{reinterpret_cast<State*>(shared), problem.pitch};
  const int64_t first = tile.first * segments.length;
  __shared__ int live[RowTiles::kMostRows];
  load_live(tile, segments, live);
  __syncthreads();
  // The place of an item of a row in the order of the scan.
  const auto place_of = [&](int i, int live) { return problem.reverse ? live - 1 - i : i; };
  for_each_loaded<8>(
      tile, problem.length, [&](int slot, int, int) { return problem.x[first + slot]; },
      [&](int slot, int row, int i, auto item) {
        if (i < live[row]) states.row(row)[place_of(i, live[row])] = op.extract(item, first + slot);
      });
  __syncthreads();

  const RowLane lane(tile, problem.tiles, problem.share);
  const int end = lane.exists ? minimum(lane.begin + problem.share, live[lane.row]) : 0;
  scan_states(op, lane, end, states.row(lane.row), [](int) { return false; });

  const auto before = [&](int row, int place) {  // the state of the row's first `place` items
    return place > 0 ? states.row(row)[place - 1] : op.identity();
  };
  for_each_slot(tile, problem.length, [&](int slot, int row, int i) {
    const int64_t row_begin = (tile.first + row) * segments.length;
    problem.result.store(
        first + slot,
        i < live[row] ? op.finish(before(row, place_of(i, live[row]) + !problem.exclusive), row_begin) : op.dead());
  });
  if (!problem.totals.given()) return;
  for (int row = threadIdx.x; row < tile.rows; row += kRowThreads) {
    problem.totals.store(tile.first + row, op.finish(before(row, live[row]), (tile.first + row) * segments.length));
  }
}

}  // namespace mgpu::cuda::short_rows
