// Sums up the counts of each row's tiles, between a kernel that counts and one that writes.
#pragma once

#include "cuda/block/scan.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/tile_counts/plan.h"

namespace mgpu::cuda {

constexpr int kSumThreads = 1024;

// Finds the sum of a row's counts before each group of tiles: one block per row, in which a thread takes a group at a
// time. Calls finish(row, all) with the sum of the whole row.
template <typename Finish>
__global__ void __launch_bounds__(kSumThreads) sum_tiles(TileCounts tiles, Finish finish) {
  __shared__ int64_t warp_sums[kSumThreads / kWarp];
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  int64_t all = 0;
  wait_for_last_kernel();
  start_next_kernel();
  for (int64_t begin = 0; begin < tiles.row_groups; begin += blockDim.x) {
    const int64_t group = begin + threadIdx.x;
    int own = 0;
    if (group < tiles.row_groups) {
      Vector<int> counts[kTileGroup / 4];
#pragma unroll
      for (int i = 0; i < kTileGroup; i += 4) {
        counts[i / 4] = Vector<int>::load(tiles.counts, (row * tiles.row_groups + group) * kTileGroup + i);
      }
#pragma unroll
      for (int i = 0; i < kTileGroup; ++i) own += counts[i / 4].items[i % 4];
    }
    const int up_to = sum_up_to(own);
    if (lane == kWarp - 1) warp_sums[warp] = up_to;
    __syncthreads();
    const int64_t warp_sum = lane < warps ? warp_sums[lane] : 0;
    const int64_t up_to_warp = sum_up_to(warp_sum);
    const int64_t before_warp = shuffle(up_to_warp - warp_sum, warp);
    if (group < tiles.row_groups) tiles.before_group[row * tiles.row_groups + group] = all + before_warp + up_to - own;
    all += shuffle(up_to_warp, kWarp - 1);
    __syncthreads();
  }
  if (threadIdx.x == 0) finish(row, all);
}

// For a row's last tile, also stores zeros up to the end of its group. All lanes of a warp call it.
__device__ inline void set_tile_count(const TileCounts& tiles, int64_t row, int64_t tile, int64_t row_tiles,
                                      int count) {
  const int lane = threadIdx.x % kWarp;
  const int64_t slot = tile + lane;
  if (lane != 0 && (tile != row_tiles - 1 || slot >= tiles.row_groups * kTileGroup)) return;
  tiles.counts[row * tiles.row_groups * kTileGroup + slot] = lane == 0 ? count : 0;
}

// All lanes of a warp call it.
__device__ inline int64_t before_tile(const TileCounts& tiles, int64_t row, int64_t tile) {
  const int64_t group = row * tiles.row_groups + tile / kTileGroup;
  const int lane = threadIdx.x % kWarp;
  const int earlier = lane < tile % kTileGroup ? tiles.counts[group * kTileGroup + lane] : 0;
  return tiles.before_group[group] + fold_warp(earlier, [](int x, int y) { return x + y; });
}

inline int sum_threads(const TileCounts& tiles) {
  return kWarp << minimum(ceil_log2(ceil_div<int64_t>(tiles.row_groups, kWarp)), 5);
}

}  // namespace mgpu::cuda
