// Each thread compares a few neighbouring keys, and the heads are compacted in shared memory.
#pragma once

#include "algorithm/segments.h"
#include "cuda/block/row_tile.cuh"

namespace mgpu::cuda::short_rows {

template <typename Order>
struct RunHeads {
  using Word = typename Order::Word;
  RowTiles tiles;
  Order order;
  Segments rows;
  const Word* keys;
  Divisor length;
  Divisor size;
  int pitch;  // the distance from row to row in shared memory (shared_pitch)
  int room;   // the room for the keys of a tile
  int share;  // the keys of a thread
  IndexResult heads;
  Word* firsts;
  IndexResult covered;
  IndexResult runs;

  size_t shared_bytes() const {
    return room * sizeof(Word) + (tiles.tile_rows + 1) * sizeof(int) + tiles.tile_rows * rows.length * sizeof(uint16_t);
  }
};

template <typename Order>
__global__ void __launch_bounds__(kRowThreads) run_heads(const __grid_constant__ RunHeads<Order> problem) {
  using Word = typename Order::Word;
  extern __shared__ __align__(16) unsigned char shared[];
  const RowTile tile(problem.tiles);
  Word* const keys = reinterpret_cast<Word*>(shared);
  int* const before_row = reinterpret_cast<int*>(keys + problem.room);
  uint16_t* const places = reinterpret_cast<uint16_t*>(before_row + problem.tiles.tile_rows + 1);
  const SharedRows<Word> rows = load_rows(tile, problem.keys, problem.length, problem.rows.length, problem.pitch, keys,
                                          [](Word key) { return key; });
  __shared__ int live[RowTiles::kMostRows];
  load_live(tile, problem.rows, live);
  __syncthreads();

  const RowLane lane(tile, problem.tiles, problem.share);
  const auto class_of = [&](Word key) { return problem.order.rank(problem.order.encode(key)); };
  const Word* const row_keys = rows.row(lane.row);
  const int end = lane.exists ? minimum(lane.begin + problem.share, live[lane.row]) : 0;
  unsigned is_head = 0;
  if (lane.begin < end) {
    Word last = class_of(row_keys[maximum(lane.begin - 1, 0)]);
    for (int i = lane.begin; i < end; ++i) {
      const Word key = class_of(row_keys[i]);
      if (key != last || i == 0) is_head |= 1u << (i - lane.begin);
      last = key;
    }
  }
  int slot = scan_rows(__popc(is_head), lane, tile, before_row);
  for (; is_head != 0; is_head &= is_head - 1) {
    places[slot++] = static_cast<uint16_t>(lane.begin + __ffs(is_head) - 1);
  }
  __syncthreads();

  const int size = static_cast<int>(problem.size.divisor);
  const auto runs_of = [&](int row) { return before_row[row + 1] - before_row[row]; };
  for (int row = threadIdx.x; row < tile.rows; row += kRowThreads) {
    problem.runs.set(tile.first + row, runs_of(row));
    problem.covered.set(tile.first + row, runs_of(row) <= size ? live[row] : places[before_row[row] + size]);
  }
  const int64_t first = tile.first * size;
  for_each_slot(tile, problem.size, [&](int slot, int row, int i) {
    const bool is_live = i < runs_of(row);
    const int place = is_live ? places[before_row[row] + i] : 0;
    problem.heads.set(first + slot, is_live ? place : static_cast<int>(problem.length.divisor));
    problem.firsts[first + slot] = is_live ? rows.row(row)[place] : Word{0};
  });
}

}  // namespace mgpu::cuda::short_rows
