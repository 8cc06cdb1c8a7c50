// Items and segment ends are the units of one sequence, which is cut into equal tiles whatever the segments' lengths
// (Merrill and Garland, "Merge-based Parallel Sparse Matrix-Vector Multiplication", 2016).
#pragma once

#include "cuda/block/partition.cuh"
#include "cuda/block/put_ranges.cuh"
#include "cuda/ptx.cuh"
#include "ops/reduce/plan.h"

namespace mgpu::cuda {

constexpr int kPartitionThreads = 256;
constexpr int kSearchLanes = 4;

// Like warp_partition_point, with fewer instructions.
template <typename Predicate>
__device__ __forceinline__ int64_t search_by_warp(int64_t begin, int64_t end, Predicate before) {
  while (begin < end) {
    const int64_t step = (end - begin + kWarp - 1) / kWarp;
    const int64_t probe = begin + (threadIdx.x % kWarp + 1) * step - 1;
    const int parts = __popc(__ballot_sync(~0u, probe < end && before(probe)));
    begin = minimum(begin + parts * step, end);
    end = minimum(begin + step - 1, end);
  }
  return begin;
}

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
  int units;
  int64_t* items_before;

  UnitTiles(const SegmentEnds& ends, int64_t tiles, int units, int64_t* items_before)
      : ends(ends),
        total_items(ends.segments.total()),
        total_ends(ends.count()),
        tiles(tiles),
        units(units),
        items_before(items_before) {}

  // Whether one thread per end finds the tiles that begin
  // there, instead of a search per tile.
  MGPU_HOST_DEVICE bool are_placed_by_ends() const { return total_ends <= 16 * tiles && tiles <= 4 * total_ends; }

  unsigned partition_blocks() const {
    const int64_t threads = are_placed_by_ends() ? total_ends + 1 : (tiles + 1) * kSearchLanes;
    return static_cast<unsigned>(ceil_div<int64_t>(threads, kPartitionThreads));
  }

  __device__ __forceinline__ TileUnits operator[](int64_t tile) const {
    return between(tile, items_before[tile], items_before[tile + 1]);
  }

  __device__ __forceinline__ int64_t first_end(int64_t tile) const { return tile * units - items_before[tile]; }

  // Like operator[], if partition_units has not run: two warps of the block search for the edges of the tile.
  __device__ TileUnits find(int64_t tile) const {
    __shared__ int64_t edges[2];
    const int warp = threadIdx.x / kWarp;
    if (warp < 2) {
      const int64_t unit = minimum((tile + warp) * units, total_items + total_ends);
      const int64_t items =
          ends.items_before(unit, [](auto begin, auto end, auto before) { return search_by_warp(begin, end, before); });
      if (threadIdx.x % kWarp == 0) edges[warp] = items;
    }
    __syncthreads();
    return between(tile, edges[0], edges[1]);
  }

  __device__ __forceinline__ int64_t tile_of(int64_t unit) const {
    const bool is_narrow = static_cast<uint64_t>(unit) >> 32 == 0;
    return is_narrow ? static_cast<uint32_t>(unit) / static_cast<uint32_t>(units) : unit / units;
  }

 private:
  __device__ __forceinline__ TileUnits between(int64_t tile, int64_t item, int64_t next_item) const {
    const int64_t begin = tile * units;
    const int size = static_cast<int>(minimum<int64_t>(units, total_items + total_ends - begin));
    // Heads out of order may give more items or ends than there are.
    const int items = static_cast<int>(clamp<int64_t>(next_item - item, 0, size));
    const int64_t end = begin - item;
    return {item, end, size, items, static_cast<int>(minimum<int64_t>(size - items, total_ends - end))};
  }
};

// Each end has a thread, which writes items_before for the tiles that begin after the previous end and not after its
// own; one more thread writes those after the last end. If ends are out of order, several threads may write a tile, but
// every tile is written.
__device__ __forceinline__ void place_tiles_by_ends(const UnitTiles& tiles) {
  const int64_t end = int64_t{blockIdx.x} * kPartitionThreads + threadIdx.x;
  const auto tiles_up_to = [&](int64_t j) { return (tiles.ends[j] + j) / tiles.units + 1; };
  int64_t tile = 0, limit = 0;
  if (end <= tiles.total_ends) {
    tile = end > 0 ? tiles_up_to(end - 1) : 0;
    limit = end < tiles.total_ends ? tiles_up_to(end) : tiles.tiles + 1;
  }
  put_ranges(tile, limit, end, [&](int64_t t, int64_t j) {
    tiles.items_before[t] = minimum(t * tiles.units, tiles.total_items + tiles.total_ends) - j;
  });
}

static __global__ void __launch_bounds__(kPartitionThreads) partition_units(UnitTiles tiles) {
  start_next_kernel();
  if (tiles.are_placed_by_ends()) return place_tiles_by_ends(tiles);
  const int64_t tile = (int64_t{blockIdx.x} * kPartitionThreads + threadIdx.x) / kSearchLanes;
  const int64_t begin = minimum(tile * tiles.units, tiles.total_items + tiles.total_ends);
  const int64_t items = tiles.ends.items_before(
      begin, [](auto begin, auto end, auto before) { return warp_partition_point<kSearchLanes>(begin, end, before); });
  if (threadIdx.x % kSearchLanes == 0 && tile <= tiles.tiles) tiles.items_before[tile] = items;
}

}  // namespace mgpu::cuda
