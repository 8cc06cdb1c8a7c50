// Tiles of whole short rows in shared memory.
//
//   const RowTile tile(tiles);
//   ... load_rows of each operand: one coalesced run, or one row that all rows of the tile share ...
//   __syncthreads();
//   const RowLane lane(tile, tiles, share);   // the thread's share of one row, which it walks serially
//   ... scan_rows where results are compacted: a row never leaves its tile, so nothing looks back ...
//   for_each_slot(tile, size, ...);    // all slots of the tile's rows: one coalesced run again
#pragma once

#include "algorithm/row_tiles.h"
#include "cuda/block/scan.cuh"

namespace mgpu::cuda {

constexpr int kRowThreads = RowTiles::kThreads;

// The rows of block blockIdx.x.
struct RowTile {
  int64_t first;
  int rows;

  __device__ explicit RowTile(const RowTiles& tiles)
      : first(int64_t{blockIdx.x} * tiles.tile_rows),
        rows(static_cast<int>(minimum<int64_t>(tiles.tile_rows, tiles.rows - first))) {}
};

// The row that a thread works on, counted from the tile's first, and the first place in that row of the thread's share.
// A thread without a row gets a share of the last row, and `exists` is false.
struct RowLane {
  int row;
  int begin;
  bool exists;

  __device__ RowLane(const RowTile& tile, const RowTiles& tiles, int share) {
    row = static_cast<int>(tiles.lanes.quotient(threadIdx.x));
    begin = (static_cast<int>(threadIdx.x) - row * static_cast<int>(tiles.lanes.divisor)) * share;
    exists = row < tile.rows;
    row = minimum(row, tile.rows - 1);
  }
};

// Calls visit(slot, row, i) for all slots of the tile's
// rows, `size` per row; i is the slot's place in its row.
template <typename Visit>
__device__ __forceinline__ void for_each_slot(const RowTile& tile, const Divisor& size, Visit visit) {
  const int slots = tile.rows * static_cast<int>(size.divisor);
#pragma unroll 4
  for (int slot = threadIdx.x; slot < slots; slot += kRowThreads) {
    const int row = static_cast<int>(size.quotient(slot));
    visit(slot, row, slot - row * static_cast<int>(size.divisor));
  }
}

// Calls visit(slot, row, i, loaded) with the result of load(slot,
// row, i). A thread loads kBatch slots before it visits the first.
template <int kBatch, typename Load, typename Visit>
__device__ __forceinline__ void for_each_loaded(const RowTile& tile, const Divisor& size, Load load, Visit visit) {
  const int slots = tile.rows * static_cast<int>(size.divisor);
  for (int base = threadIdx.x; base < slots; base += kBatch * kRowThreads) {
    decltype(load(0, 0, 0)) loaded[kBatch];
    const auto with_slot = [&](int k, auto use) {
      const int slot = base + k * kRowThreads;
      if (slot >= slots) return;
      const int row = static_cast<int>(size.quotient(slot));
      use(slot, row, slot - row * static_cast<int>(size.divisor));
    };
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      with_slot(k, [&](int slot, int row, int i) { loaded[k] = load(slot, row, i); });
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      with_slot(k, [&](int slot, int row, int i) { visit(slot, row, i, loaded[k]); });
    }
  }
}

template <typename Word>
struct SharedRows {
  Word* items;
  int pitch;  // 0 if all rows of the tile use the same row of this operand

  __device__ Word* row(int row) const { return items + row * pitch; }
};

// Copies the tile's rows of an array to `to`, each item as convert(item). The next row is `stride` items further, or 0
// if all rows share one. A barrier must follow.
template <typename Item, typename Word, typename Convert>
__device__ SharedRows<Word> load_rows(const RowTile& tile, const Item* array, const Divisor& length, int64_t stride,
                                      int pitch, Word* to, Convert convert) {
  const Item* const from = array + tile.first * stride;
  RowTile loaded = tile;
  if (pitch == 0) loaded.rows = 1;
  for_each_loaded<8>(
      loaded, length, [&](int slot, int, int) { return from[slot]; },
      [&](int, int row, int i, Item item) { to[row * pitch + i] = convert(item); });
  return {to, pitch};
}

// A barrier must follow.
template <typename Operand>
__device__ void load_live(const RowTile& tile, const Operand& operand, int* live) {
  static_assert(RowTiles::kMostRows <= kRowThreads);
  if (static_cast<int>(threadIdx.x) < tile.rows) {
    live[threadIdx.x] = static_cast<int>(operand.live(tile.first + threadIdx.x));
  }
}

// The place of a slot's 2-byte word, such that threads 8 or 16 slots apart access different banks.
MGPU_HOST_DEVICE constexpr int spread(int slot) { return slot + slot / 64 * 2; }

// The sum of `number` over the threads before this one, also those of earlier rows. `before_row` gets the sum before
// each row, and the total after the last one. Contains barriers.
__device__ inline int scan_rows(int number, const RowLane& lane, const RowTile& tile, int* before_row) {
  __shared__ int warp_sums[kRowThreads / kWarp];
  const int before = sum_block<kRowThreads / kWarp>(warp_sums, number).before;
  if (lane.exists && lane.begin == 0) before_row[lane.row] = before;
  if (threadIdx.x == kRowThreads - 1) before_row[tile.rows] = before + number;
  __syncthreads();
  return before;
}

}  // namespace mgpu::cuda
