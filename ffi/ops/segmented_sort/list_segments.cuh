// Lists the segments of a radix sort, and counts their tiles.
#pragma once

#include "cuda/block/scan.cuh"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/digit_problem.cuh"

namespace mgpu::cuda::sorting {

// Lists all nonempty segments, by one block, because there are few heads. A head that is less than an earlier one is
// replaced by that one, so segments never overlap.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    list_segments(Segments segments, int tile_items, DigitSegment* listed, DigitTotals* totals) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ int64_t warp_heads[kWarps];
  __shared__ DigitTotals warp_totals[kWarps];
  const int64_t count = segments.flat_heads_count();
  int64_t last = 0;  // the greatest head of the previous batches
  DigitTotals all{0, 0};
  for (int64_t base = 0; base < count; base += kThreads) {
    const int64_t i = base + threadIdx.x;
    const int64_t head = i < count ? segments.flat_head(i) : 0;
    const auto greatest = [](int64_t a, int64_t b) { return maximum(a, b); };
    const auto heads = scan_block<kWarps>(warp_heads, head, int64_t{0}, greatest);
    const int64_t begin = maximum(head, maximum(heads.before, last));
    const int64_t next = i + 1 < count ? segments.flat_head(i + 1) : segments.total();
    const int64_t size = i < count ? maximum(next - begin, int64_t{0}) : 0;
    const DigitTotals own{static_cast<uint32_t>(ceil_div<int64_t>(size, tile_items)), size > 0};
    const auto add = [](const DigitTotals& a, const DigitTotals& b) {
      return DigitTotals{a.tiles + b.tiles, a.segments + b.segments};
    };
    const auto sums = scan_block<kWarps>(warp_totals, own, DigitTotals{0, 0}, add);
    const DigitTotals before = add(all, sums.before);
    if (size > 0) {
      const int64_t row = segments.row(begin);
      const int64_t position = begin - row * segments.length;
      const int64_t live = clamp<int64_t>(segments.live(row) - position, 0, size);
      listed[before.segments] = {begin, position, size, live, before.tiles};
    }
    last = maximum(last, heads.all);
    all = add(all, sums.all);
    __syncthreads();
  }
  if (threadIdx.x == 0) *totals = all;
}

// Lists only the long segments, in any order, after tiles of `tile_width` items have been described: one warp per tile.
// Clears the counters of the segments that it lists.
template <typename P>
__global__ void list_long_segments(const __grid_constant__ P problem, Segments segments,
                                   const TileDescriptor* descriptors, int64_t tiles, int tile_width,
                                   DigitSegment* listed, DigitTotals* totals) {
  start_next_kernel();
  wait_for_last_kernel();
  const int64_t tile = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (tile >= tiles) return;
  const TileDescriptor descriptor = descriptors[tile];
  if (descriptor.rounds != TileDescriptor::kByDigits || descriptor.is_left_out ||
      descriptor.first_start(tile_width) != tile)
    return;
  const int64_t begin = descriptor.segment.begin, size = descriptor.segment.size();
  const int lane = threadIdx.x % kWarp;
  // One addition counts the segment and its tiles, so that tiles are numbered in the order of the list.
  using Sum = unsigned long long;
  static_assert(sizeof(DigitTotals) == sizeof(Sum));
  Sum before = 0;
  if (lane == 0) {
    before = atomicAdd(reinterpret_cast<Sum*>(totals),
                       Sum{1} << 32 | static_cast<unsigned>(ceil_div<int64_t>(size, P::kTile)));
    const int64_t position = begin - segments.row(begin) * segments.length;
    listed[before >> 32] = {begin, position, size, size, static_cast<unsigned>(before)};
  }
  const int64_t counts = problem.places * kDigits;
  typename P::Offset* const starts = problem.starts + (__shfl_sync(~0u, before, 0) >> 32) * counts;
  for (int i = lane; i < counts; i += kWarp) starts[i] = 0;
}

}  // namespace mgpu::cuda::sorting
