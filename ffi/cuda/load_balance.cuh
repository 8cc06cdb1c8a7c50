// The kernels of load_balance_search, and the partition that every kernel over a load-balancing search starts with.
#pragma once

#include "cuda/cta/load_balance.cuh"
#include "cuda/cta/ptx.cuh"
#include "operands/load_balance.h"

namespace mgpu::cuda::load_balancing {

// Lanes that search for a cell together: all cells of 2^26 outputs in one wave of warps, each of which waits for memory
// 8 times, where warps of a cell each would take 3 waves of 5.
constexpr int kCellLanes = 8;

static __global__ void partition_cells(const __grid_constant__ WorkList work, const __grid_constant__ WorkTiles tiles) {
  start_next_kernel();
  const int64_t cells = work.problems * (tiles.tiles + 1);
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (work.replaced() && work.live(0) == 0) {  // by nothing: other kernels did it all
    if (thread < tiles.stride()) tiles.cells[thread] = 0;
    return;
  }
  const int64_t cell = minimum(thread / kCellLanes, cells - 1);  // the lanes of a warp stay together
  const int64_t problem = cell / (tiles.tiles + 1);
  const auto find = [](auto begin, auto end, auto before) {
    return warp_partition_point<kCellLanes>(begin, end, before);
  };
  const int64_t tile = cell - problem * (tiles.tiles + 1);
  with_width<void>(work.offsets_of(problem), [&](auto offsets) {
    WorkRowOf<decltype(offsets), int64_t> row{offsets, work.objects, work.drift, work.live(problem)};
    row.first = row.find_first(find);
    const int64_t head = row.first_from(minimum(tile * tiles.tile, work.size), find);
    const bool is_last = tile == tiles.tiles;
    if (__any_sync(0xffffffffu, is_last)) row.total = row.find_total(work.size, find);
    if (thread % kCellLanes != 0) return;
    int64_t* const heads = tiles.cells + problem * tiles.stride();
    heads[tile] = head;
    if (is_last) {
      heads[tile + 1] = row.first;
      heads[tile + 2] = row.total;
    }
  });
}

// With ranks, an object's slot is how far the tile's first output lies behind the object's own.
template <typename Index, bool kRanks>
__global__ void __launch_bounds__(kWorkThreads, work_blocks(sizeof(Index)))
    search_tiles(const __grid_constant__ WorkList work, const __grid_constant__ WorkTiles tiles, Index* objects,
                 Index* ranks) {
  using Tile = TileWork<kWorkThreads, kWordItems, std::conditional_t<kRanks, Index, NoSlot>>;
  __shared__ typename Tile::Shared shared;
  wait_for_last_kernel();
  const Tile tile(shared, work, tiles, [](const Tile& tile) {
    if constexpr (kRanks) {
      return [begin = tile.begin](auto, auto offset) { return static_cast<Index>(begin - offset); };
    } else {
      return [](auto, auto) { return NoSlot{}; };
    }
  });
  const int64_t origin = tile.problem * work.size + tile.begin;
  tile.store(objects + origin, Index{-1}, [&](int, auto mark) { return static_cast<Index>(tile.before + mark); });
  if constexpr (kRanks) {
    if (tile.has_slots) {
      tile.store(ranks + origin, Index{-1}, [&](int i, auto mark) { return shared.slots[mark] + i; });
    } else {
      tile.store(ranks + origin, Index{-1}, [&](int i, auto mark) {
        return static_cast<Index>(tile.begin + i - tile.row.start(tile.before + mark));
      });
    }
  }
}

}  // namespace mgpu::cuda::load_balancing
