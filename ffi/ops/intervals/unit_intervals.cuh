// Moves of intervals that have one item each, or two each.
// The shapes tell whether they can have that length, the offsets whether they do.
#pragma once

#include "ops/intervals/destination_buckets.cuh"
#include "ops/intervals/kernels.cuh"

namespace mgpu::cuda {

template <typename Word>
struct alignas(sizeof(Word) <= 4 ? 8 : 16) UnitMove {
  uint32_t place;
  Word row;
};

// With this many items per thread, a tile's part of a region has 256 bytes if there are kRegions equal parts.
template <typename Word>
constexpr int kUnitItems = 128 / sizeof(UnitMove<Word>);

// Puts the moves of a tile in the order of their regions,
// and appends each region's part to that region. The
// stores of move_ordered_units then meet in the L2 cache.
template <typename Word>
__global__ void __launch_bounds__(kOrderThreads) put_units_in_order(const __grid_constant__ RegionIntervals intervals,
                                                                    const __grid_constant__ Rows x, int64_t places) {
  constexpr int kItems = kUnitItems<Word>;
  constexpr int kTile = kOrderThreads * kItems;
  constexpr int kRegions = RegionOrder::kRegions;
  static_assert(sizeof(UnitMove<Word>) == unit_move_bytes(sizeof(Word)) && kRegions <= kOrderThreads);
  __shared__ unsigned warp_sums[kOrderThreads / kWarp];
  __shared__ unsigned counts[kRegions];
  __shared__ unsigned begins[kRegions];
  __shared__ unsigned slots[kRegions];  // the difference between an item's slot in the region and its place in the tile
  __shared__ UnitMove<Word> moves[kTile];
  const RegionOrder& order = intervals.order;
  if (threadIdx.x < kRegions) counts[threadIdx.x] = 0;
  // Nothing is left to do if another block has set is_mixed.
  if (__syncthreads_or(threadIdx.x == 0 && *static_cast<const volatile int32_t*>(order.is_mixed) != 0)) return;

  const int begin = static_cast<int>(blockIdx.x * kTile + threadIdx.x);
  const int objects = static_cast<int>(intervals.work.objects);
  const int live = intervals.end();
  const bool gathers = intervals.gather_starts != intervals.offsets;
  const Word* const rows = reinterpret_cast<const Word*>(x.data);
  constexpr uint32_t kNowhere = ~0u;
  uint32_t place[kItems];
  Word row[kItems];
  unsigned rank[kItems];
  bool is_unit = true;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int j = begin + k * kOrderThreads;
    const bool is_interval = j < objects;
    const int offset = is_interval ? __ldcs(intervals.offsets + j) : live;
    const int source = gathers && is_interval ? __ldcs(intervals.gather_starts + j) : j;
    place[k] = is_interval ? static_cast<uint32_t>(__ldcs(intervals.scatter_starts + j)) : kNowhere;
    const bool has_source = is_interval && static_cast<uint32_t>(source) < static_cast<uint64_t>(x.count);
    row[k] = has_source ? rows[source] : Word{};
    is_unit &= j < live ? offset == j : offset >= live;
    if (!has_source || j >= live || place[k] >= static_cast<uint64_t>(places)) place[k] = kNowhere;
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (place[k] != kNowhere) rank[k] = atomicAdd(&counts[place[k] >> order.shift], 1u);
  }
  if (!__syncthreads_and(is_unit)) {
    if (threadIdx.x == 0) *order.is_mixed = 1;
    return;
  }

  const unsigned count = threadIdx.x < kRegions ? counts[threadIdx.x] : 0;
  const auto sums = sum_block<kOrderThreads / kWarp>(warp_sums, count);
  if (threadIdx.x < kRegions) {
    const unsigned at = count > 0 ? atomicAdd(&order.unit_counts[threadIdx.x], count) : 0;
    if (at + count > 1u << order.shift) *order.is_mixed = 1;
    begins[threadIdx.x] = sums.before;
    slots[threadIdx.x] = at - sums.before;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (place[k] != kNowhere) moves[begins[place[k] >> order.shift] + rank[k]] = {place[k], row[k]};
  }
  __syncthreads();
  UnitMove<Word>* const ordered = static_cast<UnitMove<Word>*>(order.unit_moves);
  for (unsigned i = threadIdx.x; i < sums.all; i += kOrderThreads) {
    const UnitMove<Word> move = moves[i];
    const unsigned region = move.place >> order.shift;
    const unsigned slot = slots[region] + i;
    if (slot < 1u << order.shift) ordered[(int64_t{region} << order.shift) + slot] = move;
  }
}

// A region's number of places is a multiple of kMovedUnits (has_order), so all places of a block are in one region.
constexpr int kMovedItems = 4;
constexpr int kMovedUnits = kOrderThreads * kMovedItems;

template <typename Word>
__global__ void __launch_bounds__(kOrderThreads)
    move_ordered_units(const __grid_constant__ RegionOrder order, const __grid_constant__ Rows out) {
  wait_for_last_kernel();
  if (*order.is_mixed != 0) return;
  const int64_t begin = int64_t{blockIdx.x} * kMovedUnits;
  const int region = static_cast<int>(begin >> order.shift);
  const int size = static_cast<int>(order.unit_counts[region] - (begin - (int64_t{region} << order.shift)));
  const UnitMove<Word>* const ordered = static_cast<const UnitMove<Word>*>(order.unit_moves) + begin;
  Word* const rows = reinterpret_cast<Word*>(out.data);
  UnitMove<Word> moves[kMovedItems];
#pragma unroll
  for (int k = 0; k < kMovedItems; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kOrderThreads;
    if (i < size) moves[k] = ordered[i];
  }
#pragma unroll
  for (int k = 0; k < kMovedItems; ++k) {
    if (static_cast<int>(threadIdx.x) + k * kOrderThreads < size) rows[moves[k].place] = moves[k].row;
  }
}

// Outputs per thread.
constexpr int kUnitMoves = 4;
constexpr int kUnitTile = kUnitMoves * kWorkThreads;
static_assert(kUnitTile == IntervalMoveOperands::kUnitTile);

// The least number of blocks per multiprocessor. Without kIsLarge,
// a block may also move intervals of mixed lengths.
template <bool kIsLarge, typename Word>
constexpr int unit_blocks() {
  if (kIsLarge) return sizeof(Word) <= 4 ? 8 : 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return 4;
#else
  return sizeof(Word) == 16 ? 4 : 5;
#endif
}

// Consecutive rows of x.
struct RowPart {
  uint32_t begin;
  uint32_t size;

  __device__ bool has(uint32_t row) const { return row - begin < size; }
};

// With kPasses, the access hints that the L2 cache may evict the data first.
template <bool kPasses, typename T>
__device__ __forceinline__ T load_passing(const T* from) {
  return kPasses ? __ldcs(from) : *from;
}
template <bool kPasses, typename T>
__device__ __forceinline__ void store_passing(T* to, const T& value) {
  if constexpr (kPasses) {
    __stcs(to, value);
  } else {
    *to = value;
  }
}

// Finds the cells of tile blockIdx.x of a single problem. All threads of the block call it.
__device__ inline WorkTiles find_cells(const WorkList& work, int64_t tile, int64_t (&cells)[4]) {
  const auto find = [](int64_t begin, int64_t end, auto before) {
    int64_t begins[1] = {begin}, ends[1] = {end};
    block_partition_points<kWorkThreads>(begins, ends, [&](int, int64_t j) { return before(j); });
    return begins[0];
  };
  WorkRow row = work.row(0);
  row.first = row.find_first(find);
  row.total = row.find_total(work.size, find);
  const int64_t begin = int64_t{blockIdx.x} * tile;
  const int64_t positions[2] = {begin, minimum(begin + tile, work.size)};
  int64_t heads[2] = {row.first, row.first}, ends[2] = {work.objects, work.objects};
  block_partition_points<kWorkThreads>(heads, ends,
                                       [&](int k, int64_t j) { return row.starts_before(j, positions[k]); });
  if (threadIdx.x == 0) {
    cells[0] = heads[0];
    cells[1] = heads[1];
    cells[2] = row.first;
    cells[3] = row.total;
  }
  __syncthreads();
  return {tile, int64_t{blockIdx.x} + 1, cells - blockIdx.x};
}

// Moves a tile of intervals of any lengths. It finds the tile's objects itself.
template <int kItems, typename Word, typename Route>
__device__ __forceinline__ void move_mixed_tile(const WorkList& work, const Route& route) {
  using Tile = RouteTile<kItems, Route, true>;
  __shared__ typename Tile::Shared shared;
  __shared__ int64_t cells[4];
  const Word filling = route_fill<Word>(route, 0);
  const Tile tile(shared, work, find_cells(work, Tile::kTile, cells), slots_of(route));
  with_moves<sizeof(Word)>(tile, route, [&](auto move_of, auto max_in_flight) {
    copy_words<max_in_flight(), Word>(Route::fills ? tile.size : tile.live, [=](int) { return filling; }, move_of);
  });
}

// Moves one-word rows of intervals that probably all have length kLength. A tile with other lengths goes to
// move_mixed_tile or, with kIsLarge, to the kernel gather_mixed_tiles.
// Of several sweeps this is the first: it stores the fill value where a later sweep stores a row.
template <int kLength, bool kIsLarge, typename Word, typename Route>
__global__ void __launch_bounds__(kWorkThreads, unit_blocks<kIsLarge, Word>())
    move_likely_units(const __grid_constant__ WorkList work, const __grid_constant__ Route route, RowPart part,
                      uint8_t* is_mixed) {
  wait_for_last_kernel();
  const int32_t* const offsets = static_cast<const int32_t*>(work.offsets.data);
  const int size = static_cast<int>(work.size);
  const int live = static_cast<int>(minimum(work.live(0), work.size));
  const int tile_begin = static_cast<int>(blockIdx.x) * kUnitTile;
  const int begin = tile_begin + static_cast<int>(threadIdx.x);
  const int64_t behind = int64_t{tile_begin} + kUnitTile;
  const Word* const rows = reinterpret_cast<const Word*>(route.x.data);
  Word* const results = reinterpret_cast<Word*>(route.out.data);
  const Word filling = route_fill<Word>(route, 0);
  int offset[kUnitMoves];
  uint32_t source[kUnitMoves], target[kUnitMoves];
#pragma unroll
  for (int k = 0; k < kUnitMoves; ++k) {
    const int i = begin + k * kWorkThreads;
    const int j = i / kLength;
    offset[k] = i < size ? load_passing<kIsLarge>(offsets + j) : live;
    source[k] = target[k] = static_cast<uint32_t>(i);
    if constexpr (Route::kGathers) {
      const int start = i < size ? load_passing<kIsLarge>(route.gather_starts.data + j) : 0;
      source[k] = static_cast<uint32_t>(start) + i % kLength;
    }
    if constexpr (Route::kScatters) {
      target[k] = static_cast<uint32_t>(i < size ? route.scatter_starts[j] : 0) + i % kLength;
    }
  }
  // The first object of the next tile may not own an output of this one.
  bool is_unit = threadIdx.x > 0 || behind >= size || offsets[behind / kLength] >= minimum<int64_t>(behind, live);
  Word row[kUnitMoves];
  bool is_here[kUnitMoves];
#pragma unroll
  for (int k = 0; k < kUnitMoves; ++k) {
    const int i = begin + k * kWorkThreads;
    const int first = i / kLength * kLength;
    is_unit &= first < live ? offset[k] == first : offset[k] >= live;
    is_here[k] = i < live && part.has(source[k]);
    row[k] = is_here[k] ? rows[source[k]] : filling;
  }
  const bool are_units = __syncthreads_and(is_unit) != 0;
  if constexpr (kIsLarge) {
    if (threadIdx.x == 0) is_mixed[blockIdx.x] = !are_units;
    if (!are_units) return;
  } else if (!are_units) {
    return move_mixed_tile<kUnitMoves, Word>(work, route);
  }
#pragma unroll
  for (int k = 0; k < kUnitMoves; ++k) {
    const bool writes = Route::kScatters ? is_here[k] && target[k] < static_cast<uint64_t>(route.out.count)
                                         : begin + k * kWorkThreads < size;
    if (writes) store_passing<kIsLarge>(results + target[k], row[k]);
  }
}

template <int kLength, typename Word>
__global__ void __launch_bounds__(kWorkThreads)
    gather_next_part(const int32_t* starts, const __grid_constant__ WorkList work, const __grid_constant__ Rows x,
                     RowPart part, const uint8_t* is_mixed, const __grid_constant__ Rows out) {
  wait_for_last_kernel();
  if (is_mixed[blockIdx.x]) return;
  const int live = static_cast<int>(minimum(work.live(0), work.size));
  const int begin = static_cast<int>(blockIdx.x) * kUnitTile + static_cast<int>(threadIdx.x);
  const Word* const rows = reinterpret_cast<const Word*>(x.data);
  Word* const results = reinterpret_cast<Word*>(out.data);
  uint32_t source[kUnitMoves];
  Word row[kUnitMoves];
#pragma unroll
  for (int k = 0; k < kUnitMoves; ++k) {
    const int i = begin + k * kWorkThreads;
    source[k] = static_cast<uint32_t>(i < live ? __ldcs(starts + i / kLength) : 0) + i % kLength;
  }
#pragma unroll
  for (int k = 0; k < kUnitMoves; ++k) {
    if (begin + k * kWorkThreads < live && part.has(source[k])) row[k] = rows[source[k]];
  }
#pragma unroll
  for (int k = 0; k < kUnitMoves; ++k) {
    const int i = begin + k * kWorkThreads;
    if (i < live && part.has(source[k])) __stcs(results + i, row[k]);
  }
}

// Gathers a tile of kUnits of the sweeps' tiles, if the sweeps have left out one of these.
template <typename Word, typename Route>
__global__ void __launch_bounds__(kWorkThreads)
    gather_mixed_tiles(const __grid_constant__ WorkList work, const __grid_constant__ Route route,
                       const uint8_t* is_mixed) {
  constexpr int kUnits = kWordItems / kUnitMoves;
  wait_for_last_kernel();
  const int64_t unit = int64_t{blockIdx.x} * kUnits + threadIdx.x;
  if (!__syncthreads_or(threadIdx.x < kUnits && unit * kUnitTile < work.size && is_mixed[unit])) return;
  move_mixed_tile<kWordItems, Word>(work, route);
}

}  // namespace mgpu::cuda
