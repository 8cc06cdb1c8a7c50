// Whole rows that are not long, a warp each.
#pragma once

#include "cuda/scan/problem.cuh"

namespace mgpu::cuda::scanning {

// The blocks of scan_rows on an SM, as many as the registers allow.
template <typename Operator>
constexpr int kRowBlocks = sizeof(typename Operator::Element) == 1                                              ? 1
                           : Vector<typename Operator::Element>::kItems * sizeof(typename Operator::State) > 32 ? 2
                                                                                                                : 3;

// Scans rows of which each is a warp's, while the next vectors, of this row or the warp's next one, are on their way.
template <typename Operator>
__global__ void __launch_bounds__(kThreads, kRowBlocks<Operator>) scan_rows(ScanTask<Operator> task, Operator op) {
  using Items = Vector<typename Operator::Element>;
  constexpr int kVector = Items::kItems;
  constexpr int kRows = kScanVectors;
  constexpr int kSpan = kWarp * kVector;  // of a row of vectors
  const Segments& segments = task.segments;
  const int lane = threadIdx.x % kWarp;
  const int length = static_cast<int>(segments.length);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  struct At {
    int64_t row;
    int offset;  // in the order of the scan
  };
  const auto place = [&](int offset) {
    return task.reverse ? length - kVector - offset - lane * kVector : offset + lane * kVector;
  };
  const auto load = [&](const At& at, Items(&items)[kRows]) {
    if (at.row >= segments.rows) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int first = place(at.offset + r * kSpan);
      if (first >= 0 && first < length) items[r] = Items::load(task.x + at.row * length, first);
    }
  };

  At at{(int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp, 0};
  Items next[kRows];
  load(at, next);
  typename Operator::State sum = op.identity();
  while (at.row < segments.rows) {
    const bool ends = at.offset + kRows * kSpan >= length;
    const At after = ends ? At{at.row + warps, 0} : At{at.row, at.offset + kRows * kSpan};
    Items items[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) items[r] = next[r];
    load(after, next);
    const Stretch row{at.row, at.row * length, length, static_cast<int>(segments.live(at.row)), false};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int offset = at.offset + r * kSpan;
      if (offset >= length) break;
      const bool whole = offset + kSpan <= length && (task.reverse ? length - offset : offset + kSpan) <= row.live;
      const int first = place(offset);
      if (whole) {
        task.reverse ? scan_vectors<true, true>(task, op, row, first, items[r], sum)
                     : scan_vectors<true, false>(task, op, row, first, items[r], sum);
      } else {
        task.reverse ? scan_vectors<false, true>(task, op, row, first, items[r], sum)
                     : scan_vectors<false, false>(task, op, row, first, items[r], sum);
      }
    }
    if (ends) {
      if (task.totals.given() && lane == 0) task.totals.store(at.row, op.finish(sum, row.begin));
      sum = op.identity();
    }
    at = after;
  }
}

}  // namespace mgpu::cuda::scanning
