// Sorts intervals by the region of the result that they go to (RegionOrder in ops/intervals/operands.h).
// The new order has its own offsets.
#pragma once

#include "cuda/block/partition.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/ptx.cuh"
#include "ops/intervals/kernels.cuh"
#include "ops/intervals/operands.h"

namespace mgpu::cuda {

constexpr int kOrderThreads = kWorkThreads;
constexpr int kOrderItems = 10;
constexpr int kOrderTile = kOrderThreads * kOrderItems;

struct RegionIntervals {
  WorkList work;
  const int32_t* offsets;
  const int32_t* gather_starts;
  const int32_t* scatter_starts;
  RegionOrder order;

  __device__ int region(int32_t target) const {
    return minimum(static_cast<unsigned>(target) >> order.shift, unsigned{RegionOrder::kRegions - 1});
  }

  __device__ int end() const { return static_cast<int>(minimum(work.row(0).live, work.size)); }

  // Invalid offsets give arbitrary lengths, but no negative ones.
  __device__ unsigned length(int j, int last, int end) const {
    const int begin = offsets[j];
    const int next = offsets[minimum(j + 1, last)];
    return begin < 0 ? 0 : maximum(j < last ? minimum(next, end) : end, begin) - begin;
  }
};

static __global__ void __launch_bounds__(kOrderThreads)
    count_regions(const __grid_constant__ RegionIntervals intervals) {
  constexpr int kRegions = RegionOrder::kRegions;
  constexpr int kCopies = 4;  // a warp adds to one of them
  static_assert(kRegions < kOrderThreads);
  start_next_kernel();
  __shared__ unsigned counts[kCopies][kRegions];
  __shared__ unsigned items[kCopies][kRegions];
  if (intervals.order.is_done()) return;
  for (int i = threadIdx.x; i < kCopies * kRegions; i += kOrderThreads) (&counts[0][0])[i] = (&items[0][0])[i] = 0;
  __syncthreads();
  const int last = static_cast<int>(intervals.work.objects) - 1;
  const int begin = static_cast<int>(blockIdx.x * kOrderTile + threadIdx.x);
  const int end = intervals.end();
  int region[kOrderItems];
  unsigned length[kOrderItems];
#pragma unroll
  for (int k = 0; k < kOrderItems; ++k) {
    const int j = minimum(begin + k * kOrderThreads, last);
    region[k] = intervals.region(intervals.scatter_starts[j]);
    length[k] = intervals.length(j, last, end);
  }
  const int copy = threadIdx.x / kWarp % kCopies;
#pragma unroll
  for (int k = 0; k < kOrderItems; ++k) {
    if (begin + k * kOrderThreads > last) break;
    atomicAdd(&counts[copy][region[k]], 1u);
    atomicAdd(&items[copy][region[k]], length[k]);
  }
  __syncthreads();
  RegionOrder::Sum sum = 0;
  if (threadIdx.x < kRegions) {
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      sum += (RegionOrder::Sum{items[c][threadIdx.x]} << 32) + counts[c][threadIdx.x];
    }
    if (sum > 0) atomicAdd(&intervals.order.sums[threadIdx.x], sum);
  }
  const int touched = __syncthreads_count(sum > 0);
  if (threadIdx.x == 0) atomicAdd(intervals.order.touched, touched);
}

// Finds where the regions begin, and whether sorting pays: a block's intervals go to more than kRegions / 8 regions on
// average. It is launched with one block.
static __global__ void begin_regions(RegionOrder order, int blocks) {
  __shared__ RegionOrder::Sum sums[RegionOrder::kRegions];
  const int region = threadIdx.x;
  start_next_kernel();
  wait_for_last_kernel();
  if (order.is_done()) {
    *order.items = 0;
    *order.is_used = 1;
    return;
  }
  const RegionOrder::Sum sum = order.sums[region];
  RegionOrder::Sum end = sum;
  for (int distance = 1; distance < RegionOrder::kRegions; distance *= 2) {
    sums[region] = end;
    __syncthreads();
    if (region >= distance) end += sums[region - distance];
    __syncthreads();
  }
  order.ends[region] = end - sum;
  if (region < RegionOrder::kRegions - 1) return;
  *order.items = static_cast<int64_t>(end >> 32);
  *order.is_used = *order.touched > int64_t{blocks} * RegionOrder::kRegions / 8;
}

// Puts a tile of intervals in the order of their regions, and appends each region's part to that region.
// Additional blocks fill the result meanwhile.
static __global__ void __launch_bounds__(kOrderThreads, 4)
    place_intervals(const __grid_constant__ RegionIntervals intervals, const __grid_constant__ ArrayFill fill) {
  constexpr int kRegions = RegionOrder::kRegions;
  __shared__ unsigned warp_sums[kOrderThreads / kWarp];
  __shared__ unsigned counts[kRegions];
  __shared__ unsigned begins[kRegions + 1];
  __shared__ int32_t slots[kRegions];    // the difference between an interval's places in the new order and in the tile
  __shared__ unsigned starts[kRegions];  // an interval's offset minus the items before it in the tile
  __shared__ int2 moves[kOrderTile];
  __shared__ unsigned offsets[kOrderTile + 1];
  const RegionOrder& order = intervals.order;
  start_next_kernel();
  const int64_t tiles = ceil_div<int64_t>(intervals.work.objects, kOrderTile);
  const bool fills = blockIdx.x >= tiles;
  if (fills) fill.store(blockIdx.x - tiles, gridDim.x - tiles);
  wait_for_last_kernel();
  if (fills || order.is_done() || *order.is_used == 0) return;
  if (threadIdx.x < kRegions) counts[threadIdx.x] = 0;
  __syncthreads();

  const int last = static_cast<int>(intervals.work.objects) - 1;
  const int begin = static_cast<int>(blockIdx.x * kOrderTile);
  const int size = minimum(kOrderTile, last + 1 - begin);
  const int end = intervals.end();
  int2 move[kOrderItems];
  unsigned length[kOrderItems];
  unsigned rank[kOrderItems];
#pragma unroll
  for (int k = 0; k < kOrderItems; ++k) {
    const int j = minimum(begin + k * kOrderThreads + static_cast<int>(threadIdx.x), last);
    move[k] = {intervals.gather_starts[j], intervals.scatter_starts[j]};
    length[k] = intervals.length(j, last, end);
  }
#pragma unroll
  for (int k = 0; k < kOrderItems; ++k) {
    if (k * kOrderThreads + static_cast<int>(threadIdx.x) < size) {
      rank[k] = atomicAdd(&counts[intervals.region(move[k].y)], 1u);
    }
  }
  __syncthreads();
  const unsigned first =
      sum_block<kOrderThreads / kWarp>(warp_sums, threadIdx.x < kRegions ? counts[threadIdx.x] : 0).before;
  if (threadIdx.x <= kRegions) begins[threadIdx.x] = first;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kOrderItems; ++k) {
    if (k * kOrderThreads + static_cast<int>(threadIdx.x) < size) {
      const unsigned place = begins[intervals.region(move[k].y)] + rank[k];
      moves[place] = move[k];
      offsets[place] = length[k];
    }
  }
  __syncthreads();

  const int mine = threadIdx.x * kOrderItems;
  unsigned items = 0;
#pragma unroll
  for (int k = 0; k < kOrderItems; ++k) items += mine + k < size ? offsets[mine + k] : 0;
  unsigned before = sum_block<kOrderThreads / kWarp>(warp_sums, items).before;
#pragma unroll
  for (int k = 0; k < kOrderItems; ++k) {
    const unsigned length = mine + k < size ? offsets[mine + k] : 0;
    offsets[mine + k] = before;
    before += length;
  }
  if (threadIdx.x == kOrderThreads - 1) offsets[kOrderTile] = before;
  __syncthreads();

  if (threadIdx.x < kRegions) {
    const int r = threadIdx.x;
    const unsigned count = begins[r + 1] - first;
    const unsigned start = offsets[first];
    const RegionOrder::Sum sum = (RegionOrder::Sum{offsets[first + count] - start} << 32) + count;
    const RegionOrder::Sum at = count > 0 ? atomicAdd(&order.ends[r], sum) : 0;
    slots[r] = static_cast<int32_t>(static_cast<unsigned>(at) - first);
    starts[r] = static_cast<unsigned>(at >> 32) - start;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += kOrderThreads) {
    const int2 move = moves[i];
    const int r = intervals.region(move.y);
    const int slot = slots[r] + i;
    order.offsets[slot] = static_cast<int32_t>(starts[r] + offsets[i]);
    order.gather_starts[slot] = move.x;
    order.scatter_starts[slot] = move.y;
  }
}

}  // namespace mgpu::cuda
