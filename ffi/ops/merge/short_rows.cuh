// Threads of a row merge it in shared memory, and each starts at its split of merge path.
#pragma once

#include "ops/common/payload.h"
#include "ops/sorted_pair/short_rows.cuh"

namespace mgpu::cuda::short_rows {

template <typename Order, typename Payload>
struct Merge {
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  ShortPair<Order> rows;
  Divisor row_slots;
  bool gives_indices;
  ValueRows<Payload> a_values;
  ValueRows<Payload> b_values;
  typename Order::Word* keys;
  Payload* payload;

  size_t shared_bytes() const {
    return rows.room * sizeof(typename Order::Word) +
           spread(rows.tiles.tile_rows * static_cast<int>(row_slots.divisor)) * sizeof(uint16_t);
  }
};

constexpr uint16_t kNoSource = 0xffff;

template <typename Order, typename Payload>
__global__ void __launch_bounds__(kRowThreads) merge(const __grid_constant__ Merge<Order, Payload> problem) {
  using P = Merge<Order, Payload>;
  using Word = typename Order::Word;
  extern __shared__ __align__(16) unsigned char shared[];
  Word* const keys = reinterpret_cast<Word*>(shared);
  uint16_t* const sources = reinterpret_cast<uint16_t*>(keys + problem.rows.room);  // the place of each slot's key
  const PairRows<Order> pair(problem.rows, keys);
  const RowTile& tile = pair.tile;
  __syncthreads();

  const RowLane lane(tile, problem.rows.tiles, problem.rows.share);
  const int row_slots = static_cast<int>(problem.row_slots.divisor);
  if (lane.exists) {
    const MergeCursor runs = pair.runs(lane.row);
    const int live = runs.a_end - runs.a + runs.b_end - runs.b;
    const int begin = minimum(lane.begin, live);
    const auto less = pair.less();
    MergeHeads<Word> heads(keys, shared_cursor(keys, runs, begin, problem.rows.stride, less));
    const int end = minimum(lane.begin + problem.rows.share, row_slots);
    int slot = lane.row * row_slots + lane.begin;
    for (int i = lane.begin; i < end; ++i, ++slot) {
      const bool in_b = heads.next_is_b(less);
      sources[spread(slot)] = i < live ? static_cast<uint16_t>(position_of(in_b ? heads.b : heads.a, keys)) : kNoSource;
      if (i < live) heads.take(in_b);
    }
  }
  __syncthreads();

  const int64_t first = tile.first * row_slots;
  for_each_slot(tile, problem.row_slots, [&](int slot, int row, int) {
    const int source = sources[spread(slot)];
    const bool is_live = source != kNoSource;
    problem.keys[first + slot] = is_live ? problem.rows.order.decode(keys[source]) : Word{0};
    if constexpr (P::kHasPayload) {
      const Payload none = problem.gives_indices ? static_cast<Payload>(-1) : Payload{0};
      problem.payload[first + slot] =
          is_live ? pair.value_of(source, row, problem.gives_indices, problem.a_values, problem.b_values) : none;
    }
  });
}

}  // namespace mgpu::cuda::short_rows
