#pragma once

#include "ops/scan/problem.cuh"

namespace mgpu::cuda::scanning {

// The least number of blocks on a multiprocessor.
template <typename Operator>
constexpr int kRowBlocks = sizeof(typename Operator::Element) == 1                                              ? 1
                           : Vector<typename Operator::Element>::kItems * sizeof(typename Operator::State) > 32 ? 2
                                                                                                                : 3;

// Each warp scans a row while it loads the next vectors of that row or of its next row. kWhole says that rows consist
// of whole vectors; other rows may share vectors with their neighbours.
template <typename Operator, bool kWhole>
__global__ void __launch_bounds__(kThreads, kRowBlocks<Operator>) scan_rows(ScanTask<Operator> task, Operator op) {
  using Items = Vector<typename Operator::Element>;
  constexpr int kVector = Items::kItems;
  constexpr int kRows = kScanVectors;
  constexpr int kSpan = kWarp * kVector;  // the items of one vector per lane
  const Segments& segments = task.segments;
  const int lane = threadIdx.x % kWarp;
  const int length = static_cast<int>(segments.length);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  struct At {
    int64_t row;
    int offset;  // where the next vectors begin in the row, in the order of the scan
  };
  // How many items of a row's first vector, in the order of the scan, belong to another row.
  const auto lead_of = [&](int64_t row) {
    if constexpr (kWhole) return 0;
    const auto edge = static_cast<unsigned>(row + task.reverse) * static_cast<unsigned>(length);
    return static_cast<int>((task.reverse ? -edge : edge) % kVector);
  };
  const auto place = [&](int offset, int lead) {
    return task.reverse ? length + lead - kVector - offset - lane * kVector : offset - lead + lane * kVector;
  };
  const auto load = [&](const At& at, Items(&items)[kRows]) {
    if (at.row >= segments.rows) return;
    const int64_t begin = at.row * length;
    const int lead = lead_of(at.row);
    const bool ends_array = !kWhole && segments.total() - begin < length + kVector;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int first = place(at.offset + r * kSpan, lead);
      if (first <= (kWhole ? -1 : -kVector) || first >= length) continue;
      if (!ends_array || first + kVector <= length) {
        items[r] = Items::load(task.x + begin, first);
      } else {
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          if (first + k < length) items[r].items[k] = task.x[begin + first + k];
        }
      }
    }
  };

  At at{(int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp, 0};
  Items next[kRows];
  load(at, next);
  typename Operator::State sum = op.identity();
  while (at.row < segments.rows) {
    const int lead = lead_of(at.row);
    const int end = length + lead;
    const bool ends = at.offset + kRows * kSpan >= end;
    const At after = ends ? At{at.row + warps, 0} : At{at.row, at.offset + kRows * kSpan};
    Items items[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) items[r] = next[r];
    load(after, next);
    const Stretch row{at.row, at.row * length, length, static_cast<int>(segments.live(at.row)), false};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int offset = at.offset + r * kSpan;
      if (offset >= end) break;
      const bool whole = (kWhole || offset >= lead) && offset + kSpan <= end &&
                         (task.reverse ? end - offset : offset + kSpan - lead) <= row.live;
      const int first = place(offset, lead);
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
