// Finds the segment that holds each tile's first position, and the most rounds of merging that any segment takes.
#pragma once

#include "cuda/block/partition.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/plan.h"

namespace mgpu::cuda::sorting {

constexpr int64_t kNowhere = int64_t{1} << 62;

// The first position of the tile is in `segment`. Segments of `min_long` items and more are not merged but sorted by
// digits.
inline __device__ TileDescriptor described(Range<int64_t> segment, int64_t listed, int tile_width, int64_t min_long,
                                           int* max_rounds) {
  const bool is_long = segment.size() >= min_long;
  const int rounds = is_long ? TileDescriptor::kByDigits : group_rounds<int64_t>(segment, tile_width);
  if (rounds > *max_rounds) atomicMax(max_rounds, rounds);
  return {segment, listed, segment.begin / tile_width, rounds};
}

static __global__ void describe_tiles(Segments segments, int64_t tiles, int tile_width, TileDescriptor* descriptors,
                                      int64_t min_long, int* rounds) {
  start_next_kernel();
  const int64_t tile = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (tile > tiles) return;
  const auto find = [](auto begin, auto end, auto before) { return warp_partition_point(begin, end, before); };
  const int64_t position = tile * tile_width;
  Range<int64_t> segment{kNowhere, kNowhere};
  if (tile < tiles) segment = segments.segment_of(position, find);
  const int64_t listed = segments.listed_from(position, find);
  if (threadIdx.x % kWarp == 0) descriptors[tile] = described(segment, listed, tile_width, min_long, rounds);
}

// The first step for flags. One warp per tile finds the first head after the tile's start (in `end`, or kNowhere) and
// the last head (in `begin`, or -1); `listed` says whether the tile's start is a head.
static __global__ void find_tile_heads(Segments segments, int64_t tiles, int tile_width, TileDescriptor* descriptors) {
  const int64_t tile = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (tile > tiles) return;
  const int lane = threadIdx.x % kWarp;
  const Range<int64_t> range{tile * tile_width, minimum<int64_t>((tile + 1) * tile_width, segments.total())};
  int64_t inner = kNowhere, last = -1;
  bool at_start = tile == tiles;
  if (tile < tiles) {
    segments.mark_heads(range, {0, 0}, lane, kWarp, [&](int64_t position) {
      if (position == range.begin)
        at_start = true;
      else
        inner = minimum(inner, position);
      last = maximum(last, position);
    });
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    inner = minimum(inner, __shfl_xor_sync(0xffffffffu, inner, offset));
    last = maximum(last, __shfl_xor_sync(0xffffffffu, last, offset));
  }
  at_start = __any_sync(0xffffffffu, at_start);
  if (lane == 0) descriptors[tile] = {{last, inner}, at_start, 0, 0};
}

// The second step for flags. One block carries the last head to the right and the next head to the left over all tiles.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) connect_tiles(int64_t total, int64_t tiles, int tile_width,
                                                          TileDescriptor* descriptors, int64_t min_long, int* rounds) {
  start_next_kernel();
  __shared__ int64_t warps[kThreads / kWarp];
  int64_t last = 0;  // the last head to the left of this batch of tiles
  for (int64_t base = 0; base < tiles; base += kThreads) {
    const int64_t tile = base + threadIdx.x;
    const bool inside = tile < tiles;
    const auto heads = scan_block<kThreads / kWarp>(warps, inside ? descriptors[tile].segment.begin : -1, int64_t{-1},
                                                    [](int64_t a, int64_t b) { return maximum(a, b); });
    if (inside) {
      descriptors[tile].segment.begin = descriptors[tile].listed ? tile * tile_width : maximum(heads.before, last);
    }
    last = maximum(last, heads.all);
    __syncthreads();
  }
  int64_t next = total;  // the first head to the right of this batch of tiles
  for (int64_t base = 0; base < tiles; base += kThreads) {
    const int64_t tile = tiles - 1 - base - threadIdx.x;
    const bool inside = tile >= 0;
    TileDescriptor descriptor{{0, kNowhere}, 0, 0, 0};
    if (inside) descriptor = descriptors[tile];
    const int64_t first = descriptor.listed ? tile * tile_width : descriptor.segment.end;
    const auto heads = scan_block<kThreads / kWarp>(warps, inside ? first : kNowhere, kNowhere,
                                                    [](int64_t a, int64_t b) { return minimum(a, b); });
    if (inside) {
      descriptor.segment.end = minimum(descriptor.segment.end, minimum(heads.before, next));
      descriptors[tile] = described(descriptor.segment, 0, tile_width, min_long, rounds);
    }
    next = minimum(next, heads.all);
    __syncthreads();
  }
  if (threadIdx.x == 0) descriptors[tiles] = {{kNowhere, kNowhere}, 0, 0, 0};
}

}  // namespace mgpu::cuda::sorting
