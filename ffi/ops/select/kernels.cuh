// mark_kept turns the mask into a bitmap, and counts the kept items of each tile. sum_tiles sums up the counts.
// In write_kept, blocks list the positions of a tile's kept items in shared memory, and move these items.
#pragma once

#include "cuda/block/tail.cuh"
#include "ops/select/movers.cuh"
#include "ops/tile_counts/kernels.cuh"

namespace mgpu::cuda::selecting {

constexpr int kWarps = kThreads / kWarp;
constexpr int kThreadItems = kSelectTile / kThreads;
constexpr int kTileWords = kSelectTile / kWarp;
constexpr int kWarpWords = kTileWords / kWarps;
constexpr int kMarkTiles = 8;
constexpr int kMarksInFlight = 2;
constexpr int kMarkBlocks = 8;
static_assert(kWarpWords <= kWarp);

struct SelectTask {
  SelectOperands operands;
  SelectOperands::Scratch scratch;
  int64_t row_tiles;
  bool aligned;    // whether each row's mask is aligned to 16 bytes
  int mark_tiles;  // the tiles of a block of mark_kept
};

struct SelectTile {
  int64_t row;
  int64_t tile;   // its number in the row
  int64_t begin;  // its first position in the row
  int live;

  __device__ SelectTile(const SelectTask& task, int64_t number) {
    row = task.operands.rows == 1 ? 0 : number / task.row_tiles;
    tile = number - row * task.row_tiles;
    begin = tile * kSelectTile;
    live = static_cast<int>(clamp<int64_t>(task.operands.live(row) - begin, 0, kSelectTile));
  }
};

// The product's highest four bits collect the lowest bits of four bools.
__device__ inline unsigned bits_of_bools(unsigned bools) { return (bools & 0x01010101u) * 0x10204080u >> 28; }

__global__ void __launch_bounds__(kThreads, kMarkBlocks) mark_kept(SelectTask task) {
  start_next_kernel();
  __shared__ int warp_counts[kMarkTiles][kWarps];
  const int64_t first = int64_t{blockIdx.x} * task.mark_tiles;
  const int64_t tiles = task.operands.rows * task.row_tiles;
  const int place = static_cast<int>(threadIdx.x) * kThreadItems;
#pragma unroll 1
  for (int next = 0; next < task.mark_tiles; next += kMarksInFlight) {
    Vector<unsigned> bools[kMarksInFlight];
#pragma unroll
    for (int k = 0; k < kMarksInFlight; ++k) {
      if (first + next + k >= tiles) break;
      const SelectTile tile(task, first + next + k);
      const uint8_t* const keep = task.operands.keep + tile.row * task.operands.keep_stride + tile.begin + place;
      if (task.aligned && place + kThreadItems <= tile.live) {
        bools[k] = Vector<unsigned>::load(reinterpret_cast<const unsigned*>(keep), 0);
      } else {
        uint8_t bytes[kThreadItems] = {};
        for (int i = 0; i < kThreadItems && place + i < tile.live; ++i) bytes[i] = keep[i];
        memcpy(bools[k].items, bytes, sizeof(bytes));
      }
    }
#pragma unroll
    for (int k = 0; k < kMarksInFlight; ++k) {
      if (first + next + k >= tiles) break;
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) bits |= bits_of_bools(bools[k].items[i]) << (4 * i);
      const int count = fold_warp(__popc(bits), [](int x, int y) { return x + y; });
      if (threadIdx.x % kWarp == 0) warp_counts[next + k][threadIdx.x / kWarp] = count;
      reinterpret_cast<uint16_t*>(task.scratch.bits)[(first + next + k) * kThreads + threadIdx.x] =
          static_cast<uint16_t>(bits);
    }
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  for (int k = threadIdx.x / kWarp; k < task.mark_tiles && first + k < tiles; k += kWarps) {
    const SelectTile tile(task, first + k);
    const int count = fold_warp(lane < kWarps ? warp_counts[k][lane] : 0, [](int x, int y) { return x + y; });
    set_tile_count(task.scratch.tiles, tile.row, tile.tile, task.row_tiles, count);
  }
}

struct SetKept {
  IndexResult kept;
  __device__ void operator()(int64_t row, int64_t all) const { kept.set(row, all); }
};

// Blocks of one tile (blockIdx.y) share its items, if rows are wide.
// A warp lists the positions of 32
// neighbouring items at a time.
template <bool kPartition, typename Mover>
__global__ void __launch_bounds__(kThreads) write_kept(SelectTask task, Mover mover) {
  __shared__ int warp_counts[kWarps];
  __shared__ uint16_t places[kSelectTile];  // the places of kept items, then those of other live items
  const SelectOperands& operands = task.operands;
  const SelectTile tile(task, blockIdx.x);
  wait_for_last_kernel();
  start_next_kernel();  // fill_tails reads only the output of sum_tiles, which is complete
  const int64_t before = before_tile(task.scratch.tiles, tile.row, tile.tile);
  if (!kPartition && before >= operands.size) return;
  const int lane = threadIdx.x % kWarp, first_word = threadIdx.x / kWarp * kWarpWords;
  const unsigned bits = lane < kWarpWords ? task.scratch.bits[int64_t{blockIdx.x} * kTileWords + first_word + lane] : 0;
  const auto in_block = sum_block<kWarps>(warp_counts, __popc(bits));
#pragma unroll
  for (int i = 0; i < kWarpWords; ++i) {
    const unsigned word = __shfl_sync(~0u, bits, i);
    const int rank = __shfl_sync(~0u, in_block.before, i) + __popc(word & ((1u << lane) - 1));
    const int place = (first_word + i) * kWarp + lane;
    if (word >> lane & 1) {
      places[rank] = static_cast<uint16_t>(place);
    } else if (kPartition && place < tile.live) {
      places[in_block.all + place - rank] = static_cast<uint16_t>(place);
    }
  }
  __syncthreads();

  const auto move_share = [&](int count, int64_t slot, auto position_of) {
    const int share = ceil_div(count, static_cast<int>(gridDim.y)), begin = minimum<int>(blockIdx.y * share, count);
    move_items(mover, tile.row, minimum(share, count - begin), slot + begin,
               [&](int i) { return position_of(begin + i); });
  };
  const auto move = [&](int first, int count, int64_t slot) {
    move_share(count, slot, [&](int i) { return tile.begin + places[first + i]; });
  };
  move(0, static_cast<int>(minimum<int64_t>(in_block.all, operands.size - before)), before);
  if constexpr (kPartition) {
    const int64_t all = IndexVector{operands.kept.data, operands.kept.wide}[tile.row];
    move(in_block.all, tile.live - in_block.all, all + tile.begin - before);
    const int dead = static_cast<int>(minimum<int64_t>(operands.length - tile.begin, kSelectTile)) - tile.live;
    const int64_t first_dead = tile.begin + tile.live;
    move_share(dead, first_dead, [&](int i) { return first_dead + i; });
  }
}

// It may run at the same time as the last blocks of write_kept, which writes other slots.
template <typename Mover>
__global__ void __launch_bounds__(kTailThreads) fill_tails(int64_t rows, int64_t size, IndexVector kept, Mover mover) {
  for_each_tail_piece(
      rows, size * mover.row_words, [&](int64_t row) { return kept[row] * mover.row_words; },
      [&](int64_t row, int64_t begin, int64_t end) {
        if (begin < end) fill_words(mover, row, begin, end);
      });
  wait_for_last_kernel();
}

}  // namespace mgpu::cuda::selecting
