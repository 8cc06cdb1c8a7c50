// Each thread reads a few bools, and the positions of kept items are listed in shared memory.
#pragma once

#include "cuda/block/row_tile.cuh"
#include "ops/select/movers.cuh"

namespace mgpu::cuda::short_rows {

struct Select {
  RowTiles tiles;
  SelectOperands operands;
  Divisor size;
  int share;  // bools of a row per thread

  explicit Select(const SelectOperands& operands)
      : tiles(operands.rows, maximum(operands.length, operands.size)),
        operands(operands),
        size(operands.size),
        share(tiles.share(operands.length)) {}
  size_t shared_bytes() const {
    return (tiles.tile_rows + 1) * sizeof(int) + tiles.tile_rows * operands.length * sizeof(uint16_t);
  }
};

template <typename Mover>
__global__ void __launch_bounds__(kRowThreads) select(const __grid_constant__ Select problem, Mover mover) {
  extern __shared__ __align__(16) unsigned char shared[];
  const SelectOperands& operands = problem.operands;
  const RowTile tile(problem.tiles);
  const int length = static_cast<int>(operands.length);
  int* const before_row = reinterpret_cast<int*>(shared);
  uint16_t* const places = reinterpret_cast<uint16_t*>(before_row + problem.tiles.tile_rows + 1);
  __shared__ int live[RowTiles::kMostRows];
  load_live(tile, operands, live);
  __syncthreads();

  const RowLane lane(tile, problem.tiles, problem.share);
  const uint8_t* const keep = operands.keep + (tile.first + lane.row) * operands.keep_stride;
  const int end = lane.exists ? minimum(lane.begin + problem.share, length) : 0;
  unsigned bits = 0;
  for (int i = lane.begin; i < minimum(end, live[lane.row]); ++i) bits |= (keep[i] & 1u) << (i - lane.begin);
  const int slot = scan_rows(__popc(bits), lane, tile, before_row);
  const auto kept_of = [&](int row) { return before_row[row + 1] - before_row[row]; };
  if (lane.begin < end) {
    uint16_t* const row_places = places + lane.row * length;
    int rank = slot - before_row[lane.row];
    int other = kept_of(lane.row) + lane.begin - rank;
    for (int i = lane.begin; i < end; ++i) {
      if (bits >> (i - lane.begin) & 1) {
        row_places[rank++] = static_cast<uint16_t>(i);
      } else if (operands.partition) {
        row_places[i < live[lane.row] ? other++ : i] = static_cast<uint16_t>(i);
      }
    }
  }
  __syncthreads();

  for (int row = threadIdx.x; row < tile.rows; row += kRowThreads) operands.kept.set(tile.first + row, kept_of(row));
  for_each_loaded<8>(
      tile, problem.size,
      [&](int, int row, int i) {
        const bool has_item = operands.partition || i < kept_of(row);
        return has_item ? mover.load(tile.first + row, places[row * length + i]) : mover.filling(tile.first + row);
      },
      [&](int, int row, int i, typename Mover::Value value) { mover.store(tile.first + row, i, value); });
}

}  // namespace mgpu::cuda::short_rows
