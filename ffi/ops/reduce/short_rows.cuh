// The items of a row are scanned, restarting at each head. The state at a segment's last item is the segment's result.
#pragma once

#include "algorithm/segments.h"
#include "cuda/block/row_scan.cuh"
#include "ops/common/operators.h"

namespace mgpu::cuda::short_rows {

template <typename Operator>
struct SegmentedReduce {
  using State = typename Operator::State;
  RowTiles tiles;
  const typename Operator::Element* x;
  Segments segments;
  Divisor length;
  Divisor heads_count;
  int pitch;
  int heads_pitch;
  int share;
  ResultVector<Operator> result;

  int room() const { return shared_room(segments.length, pitch, tiles.tile_rows); }
  int heads_room() const { return shared_room(segments.heads_count, heads_pitch, tiles.tile_rows); }
  size_t shared_bytes() const { return room() * (sizeof(State) + sizeof(bool)) + heads_room() * sizeof(int); }
};

template <typename Operator>
__global__ void __launch_bounds__(kRowThreads)
    segmented_reduce(const __grid_constant__ SegmentedReduce<Operator> problem, int room, Operator op) {
  using State = typename Operator::State;
  extern __shared__ __align__(16) unsigned char shared[];
  const Segments& segments = problem.segments;
  const RowTile tile(problem.tiles);
  const SharedRows<State> states{reinterpret_cast<State*>(shared), problem.pitch};
  const SharedRows<bool> marks{reinterpret_cast<bool*>(states.items + room), problem.pitch};
  const auto load_heads = [&](auto* heads) {
    return load_rows(tile, heads, problem.heads_count, segments.heads_stride, problem.heads_pitch,
                     reinterpret_cast<int*>(marks.items + room), [&](auto head) {
                       return static_cast<int>(clamp<decltype(head)>(head, 0, problem.length.divisor));
                     });
  };
  const SharedRows<int> heads = segments.heads.wide ? load_heads(static_cast<const int64_t*>(segments.heads.data))
                                                    : load_heads(static_cast<const int32_t*>(segments.heads.data));
  __shared__ int live[RowTiles::kMostRows];
  load_live(tile, segments, live);
  const int64_t first = tile.first * segments.length;
  for_each_loaded<8>(
      tile, problem.length, [&](int slot, int, int) { return problem.x[first + slot]; },
      [&](int slot, int row, int i, auto item) {
        states.row(row)[i] = op.extract(item, first + slot);
        marks.row(row)[i] = false;
      });
  __syncthreads();
  for_each_slot(tile, problem.heads_count, [&](int, int row, int j) {
    const int head = heads.row(row)[j];
    if (head < static_cast<int>(problem.length.divisor)) marks.row(row)[head] = true;
  });
  __syncthreads();

  const RowLane lane(tile, problem.tiles, problem.share);
  const int end = lane.exists ? minimum(lane.begin + problem.share, live[lane.row]) : 0;
  scan_states(op, lane, end, states.row(lane.row), [row = marks.row(lane.row)](int i) { return row[i]; });

  for_each_slot(tile, problem.heads_count, [&](int slot, int row, int j) {
    const bool is_last = j + 1 == static_cast<int>(problem.heads_count.divisor);
    const int begin = minimum(heads.row(row)[j], live[row]);
    const int end = is_last ? live[row] : minimum(heads.row(row)[j + 1], live[row]);
    const State state = end > begin ? states.row(row)[end - 1] : op.identity();
    problem.result.store(tile.first * segments.heads_count + slot,
                         op.finish(state, (tile.first + row) * segments.length));
  });
}

}  // namespace mgpu::cuda::short_rows
