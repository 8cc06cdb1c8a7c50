#pragma once

#include "cuda/block/two_runs.cuh"
#include "cuda/ptx.cuh"
#include "ops/join/plan.h"

namespace mgpu::cuda::joining {

constexpr unsigned kAllLanes = 0xffffffffu;
// A heavy tile (kJoinHeavy) adds this and its number of units (kJoinUnit) to heavy_state, by one atomic addition.
// So heavy tiles are listed in the order of their units.
constexpr uint64_t kHeavyTile = uint64_t{1} << 40;
// Counts of an item's partners in earlier tiles stop here, so that no sum overflows. Such an item makes its tile heavy.
constexpr int kMaxEntering = 1 << 17;
static_assert(kMaxEntering > kJoinHeavy);

template <typename Order>
struct Problem {
  using Word = typename Order::Word;
  static constexpr TileShape kShape = join_tile_shape(sizeof(Word));
  static constexpr int kThreads = kShape.threads;
  static constexpr int kItems = kShape.items;
  static constexpr int kTile = kShape.tile();
  static constexpr int kBlocksPerProcessor = 3;

  MergeTiles<Order> tiles;
  bool keep_a;
  bool keep_b;
  int64_t row_tiles;
  int64_t size;
  IndexResult a_indices;
  IndexResult b_indices;
  JoinOperands::Scratch scratch;
};

template <typename Order>
__global__ void find_edges(const __grid_constant__ Problem<Order> problem) {
  start_next_kernel();
  using P = Problem<Order>;
  const MergeTiles<Order>& tiles = problem.tiles;
  const int64_t edge = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = edge / (problem.row_tiles + 1);
  if (row >= tiles.pair.rows) return;
  const auto find = [](auto begin, auto end, auto before) { return partition_point(begin, end, before); };
  const int64_t a_live = tiles.pair.a.live(row);
  const int64_t slot = minimum((edge - row * (problem.row_tiles + 1)) * P::kTile, a_live + tiles.pair.b.live(row));
  const MergeTiles<Order> b_first{{tiles.pair.rows, tiles.pair.b, tiles.pair.a}, tiles.order};
  const int64_t b = b_first.split(row, slot, find);
  int64_t entering = 0;
  if (slot - b < a_live) {
    const auto key = tiles.a_code(row, slot - b);
    entering = b - partition_point_near_end(
                       int64_t{0}, b, [&](int64_t j) { return tiles.order.less(tiles.b_code(row, j), key); }, find);
  }
  problem.scratch.edges[edge] = {b, entering};
}

struct Plan {
  unsigned tile;
  int64_t row;
  bool is_first;  // of its row
  bool is_last;
  bool a_follows;    // whether A continues after the tile
  int64_t a;         // the number of the row's items of A before the tile
  int64_t b;         // the same for B
  int64_t entering;  // the items of B before the tile that have the key of the next item of A
  int a_count;       // the tile's items of A; `runs` hold the next item of A too, if A continues
  TwoRuns runs;
};

template <typename Order>
__device__ Plan plan_tile(const Problem<Order>& problem, unsigned tile) {
  using P = Problem<Order>;
  const SortedPair& pair = problem.tiles.pair;
  const unsigned row_tiles = static_cast<unsigned>(problem.row_tiles);
  const unsigned tile_row = tile / row_tiles;
  const unsigned tile_in_row = tile - tile_row * row_tiles;
  Plan plan;
  plan.tile = tile;
  plan.row = tile_row;
  plan.is_first = tile_in_row == 0;
  plan.is_last = tile_in_row == row_tiles - 1;
  const JoinEdge* const edges = problem.scratch.edges + tile + tile_row;
  const int64_t a_live = pair.a.live(plan.row);
  const int64_t b_live = pair.b.live(plan.row);
  const int64_t begin = minimum(int64_t{tile_in_row} * P::kTile, a_live + b_live);
  const int64_t end = minimum(begin + P::kTile, a_live + b_live);
  plan.b = edges[0].b;
  plan.a = begin - plan.b;
  plan.entering = edges[0].entering;
  // If keys are not sorted, edges may contradict each other.
  const int64_t b_end = clamp(edges[1].b, maximum(plan.b, end - a_live), minimum(plan.b + (end - begin), b_live));
  plan.a_count = static_cast<int>(end - b_end - plan.a);
  plan.a_follows = end - b_end < a_live;
  plan.runs = two_runs<typename P::Word>(pair, plan.row, plan.a, plan.a_count + plan.a_follows, plan.b,
                                         static_cast<int>(b_end - plan.b));
  return plan;
}

}  // namespace mgpu::cuda::joining
