// How a warp scans vectors of items, one per lane.
#pragma once

#include "cuda/block/scan.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/scan/plan.h"

namespace mgpu::cuda::scanning {

constexpr int kThreads = kScanThreads;
constexpr int kWarps = kThreads / kWarp;

// The unroll factor of loops that do not limit the speed of a scan. It is 1 for callers' functions with large states,
// as copies of them take long to compile.
template <typename Operator>
constexpr int kRareUnroll = IsItem<typename Operator::Element> && sizeof(typename Operator::State) > 8 ? 1 : kWarp;

template <typename Operator>
struct ScanTask {
  SourceOf<typename Operator::Element> x;
  bool aligned;  // whether x and the result begin at multiples of 16 bytes
  bool exclusive;
  bool reverse;
  Segments segments;
  Segments restarts;      // `segments` without counts: the scan need not restart at items past a count
  int64_t tiles;          // the number of tiles of one look-back
  uint64_t* look_back;    // a ticket counter, then the slots through which tiles exchange their sums
  const int64_t* listed;  // for each tile and the end, the number of heads before those at which the tile restarts
  ResultVector<Operator> result;
  ResultVector<Operator> totals;  // null if not requested
  const void* initial;            // one item per row, which precedes the row's items in the scan, or null

  __device__ __forceinline__ bool is_exclusive() const { return scans_exclusively<Operator>(exclusive); }
  __device__ __forceinline__ bool is_reverse() const { return scans_in_reverse<Operator>(reverse); }

  // Combines the row's initial item, if there is one, with a state of the items that follow it. Scans by callers'
  // functions and scans that give indices have no initial items.
  __device__ __forceinline__ typename Operator::State begun(const Operator& op, int64_t row,
                                                            const typename Operator::State& state) const {
    using Element = typename Operator::Element;
    if constexpr (!IsItem<Element> && !Operator::kGivesIndex) {
      if (initial) return op.combine(op.extract(static_cast<const Element*>(initial)[row], 0), state);
    }
    return state;
  }
};

template <typename Operator, int kVector>
__device__ __forceinline__ void store_results(const ResultVector<Operator>& to, int64_t position,
                                              const typename Operator::Result (&results)[kVector]) {
  using Result = typename Operator::Result;
  if constexpr (IsItem<Result>) {
    for_each_leaf<Result>([&]<int kLeaf>() {
      using Leaf = std::remove_cvref_t<decltype(Result::template leaf<kLeaf>(results[0]))>;
      Leaf leaves[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const auto& from = Result::template leaf<kLeaf>(results[k]);
#pragma unroll
        for (int e = 0; e < static_cast<int>(sizeof(Leaf) / sizeof(from[0])); ++e) leaves[k][e] = from[e];
      }
      store_bytes<sizeof(leaves)>(static_cast<char*>(to.leaves[kLeaf]) + position * sizeof(Leaf), leaves);
    });
  } else {
    if constexpr (Operator::kGivesIndex) {
      if (!to.wide) {
        int32_t narrow[kVector];
#pragma unroll
        for (int k = 0; k < kVector; ++k) narrow[k] = static_cast<int32_t>(results[k]);
        return store_vector(static_cast<int32_t*>(to.data), position, narrow);
      }
    }
    store_vector(static_cast<Result*>(to.data), position, results);
  }
}

// Consecutive items of one row, which a warp or a block scans.
struct Stretch {
  int64_t row;
  int64_t begin;  // the position of the first item in the array
  int size;
  int live;    // items from `live` on are past the row's count
  bool whole;  // if true, all items are live and all vectors are aligned
};

template <typename T, int kCount>
__device__ __forceinline__ void mirror(T (&items)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount / 2; ++k) {
    const T item = items[k];
    items[k] = items[kCount - 1 - k];
    items[kCount - 1 - k] = item;
  }
}

// Scans a warp's vectors, one per lane, and stores the results. The lane's vector begins at `place` in the stretch.
// `sum` is the combination of all items before these vectors; on return it includes them.
template <bool kWhole, bool kReverse, typename Operator>
__device__ __forceinline__ void scan_vectors(const ScanTask<Operator>& task, const Operator& op, const Stretch& stretch,
                                             int place, const Vector<typename Operator::Element>& vector,
                                             typename Operator::State& sum) {
  using State = typename Operator::State;
  constexpr int kVector = Vector<typename Operator::Element>::kItems;
  const auto is_live = [&](int k) { return kWhole || (place + k >= 0 && place + k < stretch.live); };
  State states[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    states[k] = is_live(k) ? op.extract(vector.items[k], stretch.begin + place + k) : op.identity();
  }
  if (kReverse) mirror(states);
#pragma unroll
  for (int k = 1; k < kVector; ++k) states[k] = op.combine(states[k - 1], states[k]);
  const auto in_row = scan_warp<false, kWhole ? kWarp : kRareUnroll<Operator>>(op, states[kVector - 1], 0);
  const State before = op.combine(sum, in_row.before);
  sum = op.combine(sum, in_row.all);

  const int64_t row_begin = stretch.row * task.segments.length;
  typename Operator::Result results[kVector];
  State previous = before;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const State next = op.combine(before, states[k]);
    results[k] = op.finish(choose(task.is_exclusive(), previous, next), row_begin);
    previous = next;
  }
  if (kReverse) mirror(results);
  if constexpr (kWhole) {
    store_results(task.result, stretch.begin + place, results);
  } else {
#pragma unroll
    for (int k = 0; k < kVector; ++k) results[k] = is_live(k) ? results[k] : op.dead();
    if (task.aligned && place >= 0 && place + kVector <= stretch.size) {
      return store_results(task.result, stretch.begin + place, results);
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (place + k >= 0 && place + k < stretch.size) task.result.store(stretch.begin + place + k, results[k]);
    }
  }
}

template <typename Operator>
__global__ void fill_totals(ResultVector<Operator> totals, int64_t rows, Operator op) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < rows) totals.store(row, op.finish(op.identity(), 0));
}

// Combines each row's initial item, as the left operand, with the row's live results and its total.
template <typename Operator>
__global__ void begin_rows(ScanTask<Operator> task, Operator op) {
  const Segments& segments = task.segments;
  const auto begin = [&](const ResultVector<Operator>& results, int64_t i, int64_t row) {
    const auto result = static_cast<const typename Operator::Result*>(results.data)[i];
    results.store(i, op.finish(task.begun(op, row, op.extract(result, 0)), 0));
  };
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
#pragma unroll 1
  for (int64_t i = first; i < segments.total(); i += threads) {
    const int64_t row = segments.row(i);
    if (i - row * segments.length < segments.live(row)) begin(task.result, i, row);
  }
#pragma unroll 1
  for (int64_t row = first; task.totals.given() && row < segments.rows; row += threads) begin(task.totals, row, row);
}

}  // namespace mgpu::cuda::scanning
