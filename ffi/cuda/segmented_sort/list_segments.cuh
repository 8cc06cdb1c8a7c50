// The segments of a sort by digits that are not empty, where heads say which there are, and the tiles of each.
#pragma once

#include "cuda/cta/scan.cuh"
#include "operands/segmented_sort.h"

namespace mgpu::cuda::sorting {

// One block: there are few heads for all items. A head that comes before an earlier one is taken for that one, so that
// segments never overlap.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    list_segments(Segments segments, int tile_items, DigitSegment* listed, DigitTotals* totals) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ int64_t warp_heads[kWarps];
  __shared__ DigitTotals warp_totals[kWarps];
  const int64_t count = segments.flat_heads_count();
  int64_t last = 0;  // the greatest head of the batches before
  DigitTotals all{0, 0};
  for (int64_t base = 0; base < count; base += kThreads) {
    const int64_t i = base + threadIdx.x;
    const int64_t head = i < count ? segments.flat_head(i) : 0;
    const auto greatest = [](int64_t a, int64_t b) { return maximum(a, b); };
    const auto heads = scan_block<kWarps>(warp_heads, head, int64_t{0}, greatest);
    const int64_t begin = maximum(head, maximum(heads.before, last));
    const int64_t next = i + 1 < count ? segments.flat_head(i + 1) : segments.total();
    const int64_t size = i < count ? maximum(next - begin, int64_t{0}) : 0;
    const DigitTotals own{size > 0, ceil_div<int64_t>(size, tile_items)};
    const auto add = [](const DigitTotals& a, const DigitTotals& b) {
      return DigitTotals{a.segments + b.segments, a.tiles + b.tiles};
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

}  // namespace mgpu::cuda::sorting
