// A few threads per row walk along its balanced path, and kept items are compacted in shared memory.
#pragma once

#include "ops/common/payload.h"
#include "ops/sets/walk.cuh"
#include "ops/sorted_pair/short_rows.cuh"

namespace mgpu::cuda::short_rows {

template <typename Order, typename Payload>
struct Sets {
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  using Word = typename Order::Word;
  ShortPair<Order> rows;
  Divisor size;
  SetRule rule;
  bool gives_indices;
  ValueRows<Word> fill;
  ValueRows<Payload> a_values;
  ValueRows<Payload> b_values;
  ValueRows<Payload> values_fill;
  Word* keys;
  Payload* payload;
  IndexResult counts;

  size_t shared_bytes() const {
    const int slots = rows.tiles.tile_rows * static_cast<int>(rows.pair.row_slots());
    return rows.room * sizeof(Word) + (rows.tiles.tile_rows + 1) * sizeof(int) + slots * sizeof(uint16_t);
  }
};

template <typename Order, typename Payload>
__global__ void __launch_bounds__(kRowThreads) keep_items(const __grid_constant__ Sets<Order, Payload> problem) {
  using P = Sets<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kMaxItems = ShortPair<Order>::kMaxShare;
  extern __shared__ __align__(16) unsigned char shared[];
  Word* const keys = reinterpret_cast<Word*>(shared);
  int* const before_row = reinterpret_cast<int*>(keys + problem.rows.room);
  uint16_t* const sources = reinterpret_cast<uint16_t*>(before_row + problem.rows.tiles.tile_rows + 1);
  const PairRows<Order> pair(problem.rows, keys);
  const RowTile& tile = pair.tile;
  __syncthreads();

  const RowLane lane(tile, problem.rows.tiles, problem.rows.share);
  const MergeCursor runs = pair.runs(lane.row);
  const int total = runs.a_end - runs.a + runs.b_end - runs.b;
  const int diagonal = minimum(lane.begin, total);
  const auto less = pair.less();
  bool open;
  const MergeCursor merge = shared_cursor(keys, runs, diagonal, problem.rows.stride, less);
  const Split<int> split = set_operations::balanced_cursor(keys, runs, merge, diagonal, open, less);
  int taken[kMaxItems];  // places in keys
  const unsigned kept = set_operations::walk<kMaxItems>(
      MergeHeads<Word>(keys, {runs.a + split.a, runs.a_end, runs.b + split.b, runs.b_end}), open,
      lane.exists ? total - diagonal : 0, problem.rows.share, problem.rule, less,
      [&](int i, bool in_b, const auto& heads) { taken[i] = position_of(in_b ? heads.b : heads.a, keys); });
  int slot = scan_rows(__popc(kept), lane, tile, before_row);
#pragma unroll
  for (int i = 0; i < kMaxItems; ++i) {
    if (kept >> i & 1) sources[slot++] = static_cast<uint16_t>(taken[i]);
  }
  __syncthreads();

  const auto count_of = [&](int row) { return before_row[row + 1] - before_row[row]; };
  for (int row = threadIdx.x; row < tile.rows; row += kRowThreads) problem.counts.set(tile.first + row, count_of(row));
  const int64_t first = tile.first * problem.size.divisor;
  for_each_slot(tile, problem.size, [&](int slot, int row, int i) {
    const bool is_live = i < count_of(row);
    const int source = is_live ? sources[before_row[row] + i] : 0;
    problem.keys[first + slot] =
        is_live ? problem.rows.order.decode(keys[source]) : problem.fill.at(tile.first + row, 0);
    if constexpr (P::kHasPayload) {
      Payload value = problem.gives_indices ? static_cast<Payload>(-1) : Payload{0};
      if (is_live) {
        value = pair.value_of(source, row, problem.gives_indices, problem.a_values, problem.b_values);
      } else if (!problem.gives_indices) {
        value = problem.values_fill.at(tile.first + row, 0);
      }
      problem.payload[first + slot] = value;
    }
  });
}

}  // namespace mgpu::cuda::short_rows
