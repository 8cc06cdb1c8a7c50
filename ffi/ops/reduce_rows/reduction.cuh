// What the kernels of rows are given, and how they store results.
#pragma once

#include "cuda/block/shuffle.cuh"
#include "ops/reduce/unit_tiles.cuh"
#include "ops/reduce_rows/columns.cuh"

namespace mgpu::cuda::row_reducing {

constexpr int kThreads = kReduceRowsThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr uint32_t kNoEntry = 0xffff;  // in place of a result's number, for an end that closes none
static_assert(kReduceRowsStagedBytes / 4 < kNoEntry);

template <typename Operator>
constexpr int kVectorOf = row_operator<Operator>().vector;

// An item has no weight, one, or one for each group of its columns.
enum class Weights { kNone, kOne, kGroups };

// The rows that a lane loads before it uses the first.
constexpr int kMostRowsInFlight = 4;
template <Weights kWeights, typename Operator>
constexpr int kRowsInFlight = kWeights == Weights::kGroups || Operator::kGivesIndex ? 2 : kMostRowsInFlight;

// The segment that a tile's first end closes. Earlier tiles may have parts of it.
struct SplitSegment {
  int64_t end;         // -1 if there is none
  int64_t first_tile;  // that may have a part
};

template <typename Operator>
struct RowReduction {
  using Element = typename Operator::Element;
  using State = typename Operator::State;
  const Element* x;
  const Element* weights;  // [items, groups], or null
  int groups;
  RowSources sources;
  UnitTiles tiles;
  bool finds_tiles;  // whether each block searches for its own tile
  int part;          // the columns that are moved at once: a vector, or a part of one
  bool long_rows;    // whether the number of a row may have more than 32 bits
  bool is_plain;     // whether `part` is a vector, and row numbers and the bytes of a row fit 32 bits
  int lane_bits;     // a worker has 1 << lane_bits lanes
  int worker_units;
  SplitSegment* split;  // for each tile
  State* opening;       // the states of the rows in each tile before its first end
  State* open;          // the states of the rows in each tile after its last end
  ResultVector<Operator> result;

  // A worker of reduce_tiles also reads the slots after its last row.
  MGPU_HOST_DEVICE int unit_slots() const { return tiles.units + kMostRowsInFlight; }
  // A slot holds an end or the number of a row. There are as many slots for high words and as many weights, if needed.
  MGPU_HOST_DEVICE int64_t shared_bytes(bool has_weights) const {
    return unit_slots() * ((long_rows ? 8 : 4) + (has_weights ? static_cast<int64_t>(sizeof(State)) : 0));
  }
};

// The lane's columns begin at element `at` of the results.
template <int kVector, typename Operator>
__device__ __forceinline__ void store_result(const RowReduction<Operator>& reduction, const Operator& op, int64_t at,
                                             const LaneColumns& columns,
                                             const typename Operator::State (&states)[kVector]) {
  using Result = typename Operator::Result;
  if constexpr (kIsNarrow<Operator>) {
    if (!reduction.result.wide) {
      typename Operator::Narrow results[kVector];
      narrow_all<kVector>(states, results);
      return store_columns(static_cast<typename Operator::Narrow*>(reduction.result.data) + at, results, columns);
    }
  }
  int64_t row_begin = 0;
  if constexpr (Operator::kGivesIndex) {
    const Segments& segments = reduction.tiles.ends.segments;
    const int64_t row_results = segments.heads_count * reduction.sources.width;
    if (segments.rows > 1) row_begin = at / row_results * reduction.sources.count;
  }
  Result results[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) results[k] = op.finish(states[k], row_begin);
  if constexpr (Operator::kGivesIndex) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (k < columns.count) reduction.result.store(at + k, results[k]);
    }
  } else {
    store_columns(static_cast<Result*>(reduction.result.data) + at, results, columns);
  }
}

}  // namespace mgpu::cuda::row_reducing
