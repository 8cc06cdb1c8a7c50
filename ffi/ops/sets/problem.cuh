#pragma once

#include "cuda/block/partition.cuh"
#include "cuda/block/two_runs.cuh"
#include "cuda/ptx.cuh"
#include "ops/common/payload.h"
#include "ops/sets/plan.h"

namespace mgpu::cuda::set_operations {

template <typename Order, typename Payload>
struct Problem {
  using Word = typename Order::Word;
  using Value = Payload;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  static constexpr TileShape kShape = set_tile_shape(sizeof(Word));
  static constexpr int kThreads = kShape.threads;
  static constexpr int kItems = kShape.items;
  static constexpr int kTile = set_tile(sizeof(Word));
  static constexpr int kBuffers = kHasPayload ? 1 : 2;
  // The most blocks for which a multiprocessor has enough registers, without spills.
  static constexpr int kBlocksPerProcessor = sizeof(Word) == 8 || sizeof(Payload) == 8 ? 3 : 4;

  MergeTiles<Order> tiles;
  SetRule rule;
  bool gives_indices;
  int64_t row_tiles;
  int64_t size;
  const Split<int64_t>* splits;
  uint64_t* ticket;
  uint64_t* counts_before;
  SetsOperands::Rows a_values;
  SetsOperands::Rows b_values;
  Word* keys;
  Payload* payload;
  IndexResult counts;
};

// One thread per split.
template <typename Order>
__global__ void split_rows(const __grid_constant__ MergeTiles<Order> tiles, bool duplicates, int64_t row_tiles,
                           int tile_width, Split<int64_t>* splits) {
  start_next_kernel();
  using Word = typename Order::Word;
  const int64_t found = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = found / (row_tiles + 1);
  if (row >= tiles.pair.rows) return;
  const int64_t a_live = tiles.pair.a.live(row);
  const int64_t b_live = tiles.pair.b.live(row);
  const int64_t diagonal = minimum((found - row * (row_tiles + 1)) * tile_width, a_live + b_live);
  splits[found] = balanced_path(
      a_live, b_live, diagonal, [&](int64_t i) { return tiles.a_code(row, i); },
      [&](int64_t i) { return tiles.b_code(row, i); }, [&](Word x, Word y) { return tiles.order.less(x, y); },
      duplicates, [](auto begin, auto end, auto before) { return partition_point(begin, end, before); });
}

struct Plan {
  unsigned tile;
  bool exists;  // false if no tiles are left
  unsigned row;
  bool is_first;  // whether it is the first tile of its row
  bool is_last;
  Split<int64_t> begin;  // the row's items before the tile
  TwoRuns runs;
};

template <typename P>
__device__ Plan plan_tile(const P& problem, unsigned tile) {
  Plan plan{};
  plan.tile = tile;
  plan.exists = tile < problem.tiles.pair.rows * problem.row_tiles;
  if (!plan.exists) return plan;
  const unsigned row_tiles = static_cast<unsigned>(problem.row_tiles);
  plan.row = plan.tile / row_tiles;
  plan.is_first = plan.tile == plan.row * row_tiles;
  plan.is_last = plan.tile + 1 == (plan.row + 1) * row_tiles;
  const Split<int64_t>* const splits = problem.splits + plan.tile + plan.row;
  plan.begin = splits[0];
  const Split<int64_t> end = part_end<int64_t>(plan.begin, splits[1], P::kTile + 1);
  plan.runs =
      two_runs<typename P::Word>(problem.tiles.pair, plan.row, plan.begin.a, static_cast<int>(end.a - plan.begin.a),
                                 plan.begin.b, static_cast<int>(end.b - plan.begin.b));
  return plan;
}

template <typename P>
struct Buffer {
  static constexpr int kRoom = P::kThreads * P::kItems;
  // The tile's keys, and those that a thread may read past their end; later the kept keys.
  alignas(kChunkBytes) typename P::Word keys[two_runs_room<typename P::Word>(kRoom) + P::kItems];
  uint16_t sources[P::kHasPayload ? kRoom : 1];  // the places of the kept items in keys
};

template <typename P>
struct Shared {
  Buffer<P> buffers[P::kBuffers];
  int warp_sums[P::kThreads / kWarp];
  Plan plans[4];
  int64_t slot;  // the slot of a tile's first kept item
};

}  // namespace mgpu::cuda::set_operations
