// Kernels of load_balance_search. The kernel partition_cells finds the cells of tiles (WorkTiles in
// algorithm/load_balance.h), also for the kernels of ops/move_rows.
#pragma once

#include "cuda/block/load_balance.cuh"
#include "cuda/block/put_ranges.cuh"
#include "cuda/ptx.cuh"
#include "ops/load_balance/plan.h"

namespace mgpu::cuda::load_balancing {

constexpr int kCellThreads = 128;
// The lanes that search for a cell together.
// With more lanes, a search has fewer rounds of reads, but there are more warps.
constexpr int kCellLanes = 8;

struct CellSearch {
  // Whether a thread takes an object, instead of kCellLanes threads a cell.
  bool by_objects;
  int64_t threads;

  MGPU_HOST_DEVICE CellSearch(const WorkList& work, const WorkTiles& tiles)
      : by_objects(work.objects <= 16 * tiles.tiles && tiles.tiles <= 4 * work.objects),
        threads(by_objects ? work.objects + 1 : (tiles.tiles + 1) * kCellLanes) {}

  MGPU_HOST_DEVICE int64_t blocks() const { return ceil_div<int64_t>(threads, kCellThreads); }  // per problem
};

// An object has a thread, and one more thread follows the last object. A thread finds the cells that begin after the
// start of the previous object and not after the start of its own.
// With offsets out of order, several threads may write one cell, but each cell is written.
template <typename Row>
__device__ __forceinline__ void place_cells_by_objects(const WorkTiles& tiles, const Row& row, int64_t size, int64_t j,
                                                       int64_t* heads) {
  const bool has_object = j >= row.first && j <= row.objects;
  const auto is_last = [&](int64_t i) { return i == row.objects || row.offsets[i] >= row.live + (row.drift > 0); };
  const auto cells_up_to = [&](int64_t i, bool is_last) {
    const int64_t start = is_last ? size : row.start(i);
    return start >= size ? tiles.tiles + 1 : start < 0 ? 0 : start / tiles.tile + 1;
  };
  int64_t cell = 0, limit = 0;
  if (has_object) {
    const bool is_own_last = is_last(j);
    const bool is_first = j == row.first;
    const bool is_behind_last = !is_first && is_last(j - 1);
    cell = is_first ? 0 : cells_up_to(j - 1, is_behind_last);
    limit = cells_up_to(j, is_own_last);
    if (is_own_last && !is_behind_last) {
      heads[tiles.tiles + 1] = row.first;
      heads[tiles.tiles + 2] = row.find_total(size, [=](auto...) { return j; });
    }
  }
  put_ranges(cell, limit, j, [&](int64_t c, int64_t object) { heads[c] = object; });
}

template <typename Row, typename Find>
__device__ __forceinline__ void search_cell(const WorkTiles& tiles, Row row, int64_t size, int64_t thread, Find find,
                                            int64_t* heads) {
  const int64_t tile = minimum(thread / kCellLanes, tiles.tiles);  // the lanes of a warp stay together
  const int64_t head = row.first_from(minimum(tile * tiles.tile, size), find);
  const bool is_last = tile == tiles.tiles;
  if (__any_sync(~0u, is_last)) row.total = row.find_total(size, find);
  if (thread % kCellLanes != 0) return;
  heads[tile] = head;
  if (is_last) {
    heads[tile + 1] = row.first;
    heads[tile + 2] = row.total;
  }
}

static __global__ void __launch_bounds__(kCellThreads)
    partition_cells(const __grid_constant__ WorkList work, const __grid_constant__ WorkTiles tiles) {
  start_next_kernel();
  wait_for_last_kernel();
  const CellSearch search(work, tiles);
  const unsigned blocks = static_cast<unsigned>(search.blocks());
  const int64_t problem = blockIdx.x / blocks;
  const int64_t thread = int64_t{blockIdx.x % blocks} * kCellThreads + threadIdx.x;
  int64_t* const heads = tiles.cells + problem * tiles.stride();
  if (work.replaced() && work.live(0) == 0) {  // needs no search, because other kernels did all the work
    for (int64_t i = thread; i < tiles.stride(); i += int64_t{blocks} * kCellThreads) heads[i] = 0;
    return;
  }
  const auto find = [](auto begin, auto end, auto before) {
    return warp_partition_point<kCellLanes>(begin, end, before);
  };
  with_width<void>(work.offsets_of(problem), [&](auto offsets) {
    WorkRowOf<decltype(offsets), int64_t> row{offsets, work.objects, work.drift, work.live(problem)};
    row.first = row.find_first(find);
    if (search.by_objects) {
      place_cells_by_objects(tiles, row, work.size, thread, heads);
    } else {
      search_cell(tiles, row, work.size, thread, find, heads);
    }
  });
}

// With ranks, an object's slot is the distance of the tile's first output from the object's first output.
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
