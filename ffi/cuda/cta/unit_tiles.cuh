// Tiles of items and segment ends, consumed in one order: equal ones, whatever the lengths (Merrill and Garland,
// "Merge-based Parallel Sparse Matrix-Vector Multiplication", 2016).
#pragma once

#include "cuda/cta/partition.cuh"
#include "cuda/cta/ptx.cuh"
#include "operands/reduce.h"

namespace mgpu::cuda {

constexpr int kPartitionThreads = 256;
constexpr int kSearchLanes = 4;

struct TileUnits {
  int64_t first_item;
  int64_t first_end;
  int size;
  int items;
  int ends;
};

struct UnitTiles {
  SegmentEnds ends;
  int64_t total_items;
  int64_t total_ends;
  int64_t tiles;
  int units;  // in a tile
  int64_t* items_before;

  UnitTiles(const SegmentEnds& ends, int64_t tiles, int units, int64_t* items_before)
      : ends(ends),
        total_items(ends.segments.total()),
        total_ends(ends.count()),
        tiles(tiles),
        units(units),
        items_before(items_before) {}

  unsigned partition_blocks() const {
    return static_cast<unsigned>(ceil_div<int64_t>((tiles + 1) * kSearchLanes, kPartitionThreads));
  }

  __device__ __forceinline__ TileUnits operator[](int64_t tile) const {
    return between(tile, items_before[tile], items_before[tile + 1]);
  }

  __device__ __forceinline__ int64_t first_end(int64_t tile) const { return tile * units - items_before[tile]; }

  // The same without partition_units: by a block of kThreads, which searches for both ends of its tile.
  template <int kThreads>
  __device__ TileUnits find(int64_t tile) const {
    const int64_t diagonals[2] = {tile * units, minimum((tile + 1) * units, total_items + total_ends)};
    int64_t found[2], limits[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      found[k] = maximum<int64_t>(0, diagonals[k] - total_items);
      limits[k] = minimum(diagonals[k], total_ends);
    }
    block_partition_points<kThreads>(found, limits, [&](int k, int64_t j) { return ends[j] + j < diagonals[k]; });
    return between(tile, diagonals[0] - found[0], diagonals[1] - found[1]);
  }

 private:
  __device__ __forceinline__ TileUnits between(int64_t tile, int64_t item, int64_t next_item) const {
    const int64_t begin = tile * units;
    const int size = static_cast<int>(minimum<int64_t>(units, total_items + total_ends - begin));
    // Heads out of order may ask for more than there is.
    const int items = static_cast<int>(clamp<int64_t>(next_item - item, 0, size));
    const int64_t end = begin - item;
    return {item, end, size, items, static_cast<int>(minimum<int64_t>(size - items, total_ends - end))};
  }
};

static __global__ void __launch_bounds__(kPartitionThreads) partition_units(UnitTiles tiles) {
  start_next_kernel();
  const int64_t tile = (int64_t{blockIdx.x} * kPartitionThreads + threadIdx.x) / kSearchLanes;
  const int64_t begin = minimum(tile * tiles.units, tiles.total_items + tiles.total_ends);
  const int64_t items = tiles.ends.items_before(
      begin, [](auto begin, auto end, auto before) { return warp_partition_point<kSearchLanes>(begin, end, before); });
  if (threadIdx.x % kSearchLanes == 0 && tile <= tiles.tiles) tiles.items_before[tile] = items;
}

}  // namespace mgpu::cuda
