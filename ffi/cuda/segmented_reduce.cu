// segmented_reduce on CUDA: items and segment ends are consumed in one order, in equal tiles and by each thread in
// equal parts, whatever the lengths (Merrill and Garland, "Merge-based Parallel Sparse Matrix-Vector Multiplication",
// 2016). What a segment leaves in one thread for the next is scanned, in a tile and, by look-back, over the tiles.
#include "cuda/cta/look_back.cuh"
#include "cuda/cta/scan.cuh"
#include "cuda/cta/vectors.cuh"
#include "cuda/launch.cuh"
#include "operands/reduce.h"
#include "operations.h"

namespace mgpu {

namespace cuda {
namespace {

constexpr int kThreads = SegmentedReduceOperands::kThreads;
constexpr int kUnits = SegmentedReduceOperands::kUnitsPerThread;
constexpr int kTile = SegmentedReduceOperands::kTile;
constexpr int kNoEnd = 1 << 30;

// The items before each tile, by a warp.
__global__ void __launch_bounds__(kThreads) partition_units(SegmentEnds ends, int64_t tiles, int64_t* items_before) {
  const int64_t tile = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (tile > tiles) return;
  const int64_t items = ends.items_before(minimum(ends.units(), tile * kTile), [](auto begin, auto end, auto before) {
    return warp_partition_point(begin, end, before);
  });
  if (threadIdx.x % kWarp == 0) items_before[tile] = items;
}

template <typename Operator>
struct SegmentedReduction {
  const typename Operator::Element* x;
  bool aligned;
  SegmentEnds ends;
  int64_t tiles;
  const int64_t* items_before;
  uint64_t* look_back;  // a ticket counter, then the slots
  ResultVector<Operator> result;
};

template <typename Operator>
__global__ void __launch_bounds__(kThreads, sizeof(typename Operator::State) > 8 ? 3 : 4)
    reduce_segments(SegmentedReduction<Operator> reduction, Operator op) {
  using State = typename Operator::State;
  using Element = typename Operator::Element;
  using Sums = Sums<Operator, true>;
  using Sum = typename Sums::Value;
  __shared__ int64_t ticket;
  __shared__ Element items[kTile];
  __shared__ int ends[kTile];  // relative to the tile's first item
  __shared__ Sum warp_sums[kThreads / kWarp];
  __shared__ State opening;  // of the tile's first end, without what lies before the tile
  __shared__ int opening_end;

  const int64_t tile = take_ticket(reduction.look_back, ticket);
  const int64_t first_item = reduction.items_before[tile];
  const int64_t begin = tile * kTile;
  const int units = static_cast<int>(minimum<int64_t>(kTile, reduction.ends.units() - begin));
  // Heads out of order may ask for more than there is.
  const int item_count = static_cast<int>(clamp<int64_t>(reduction.items_before[tile + 1] - first_item, 0, units));
  const int64_t first_end = begin - first_item;
  const int end_count = static_cast<int>(minimum<int64_t>(units - item_count, reduction.ends.count() - first_end));
  // A single row, the most frequent case, needs no division to find an end's row.
  const Segments& segments = reduction.ends.segments;
  const bool one_row = segments.rows == 1;
  const auto emit = [&](int end, const State& state) {
    if (one_row) {
      const int64_t entry = first_end + end - 1;
      if (entry >= 0 && entry < segments.heads_count) reduction.result.store(entry, op.finish(state, 0));
      return;
    }
    const int64_t entry = reduction.ends.entry(first_end + end);
    if (entry < 0) return;
    const int64_t row_begin = reduction.ends.row(first_end + end) * segments.length;
    reduction.result.store(entry, op.finish(state, row_begin));
  };

  State state = op.identity();       // since the thread's last end
  State before_end = op.identity();  // before its first
  int thread_end = -1;               // its first end
  if (end_count == 0) {
    state =
        fold_strided(op, reduction.x, reduction.aligned, first_item, first_item + item_count, threadIdx.x, kThreads);
  } else {
    Element loaded[kUnits];
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int i = k * kThreads + threadIdx.x;
      if (i < item_count) loaded[k] = reduction.x[first_item + i];
    }
    const auto put_end = [&](int i, int64_t position) {
      ends[i] = static_cast<int>(clamp<int64_t>(position - first_item, 0, item_count));
    };
    if (one_row) {
      const int64_t live = segments.live(0);
#pragma unroll 5
      for (int i = threadIdx.x; i < end_count; i += kThreads) {
        const int64_t head = first_end + i;
        put_end(i, head < segments.heads_count    ? minimum(segments.row_head(0, head), live)
                   : head == segments.heads_count ? live
                                                  : segments.length);
      }
    } else {
#pragma unroll 1
      for (int i = threadIdx.x; i < end_count; i += kThreads) put_end(i, reduction.ends[first_end + i]);
    }
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int i = k * kThreads + threadIdx.x;
      if (i < item_count) items[i] = loaded[k];
    }
    __syncthreads();
    const int diagonal = minimum(static_cast<int>(threadIdx.x) * kUnits, item_count + end_count);
    int item = partition_point(maximum(0, diagonal - end_count), minimum(diagonal, item_count),
                               [&](int i) { return ends[diagonal - 1 - i] > i; });
    int end = diagonal - item;
    int next_end = end < end_count ? ends[end] : kNoEnd;
    // Unrolled, the code of a step would be fetched from beyond the instruction cache.
#pragma unroll 1
    for (int k = 0; k < kUnits; ++k) {
      if (item < next_end) {
        if (item < item_count) state = op.combine(state, op.extract(items[item], first_item + item));
        ++item;
      } else {
        if (thread_end < 0) {
          thread_end = end;
          before_end = state;
        } else {
          emit(end, state);
        }
        state = op.identity();
        ++end;
        next_end = end < end_count ? ends[end] : kNoEnd;
      }
    }
  }

  const auto in_warp = scan_warp<true>(op, state, __ballot_sync(0xffffffffu, thread_end >= 0));
  const Sums sums{op};
  const auto in_block = scan_warps<kThreads / kWarp>(warp_sums, in_warp.all, sums.identity(), sums);
  const Sum before = sums(in_block.before, in_warp.before);
  if (thread_end >= 0) {
    const State closed = op.combine(before.state, before_end);
    if (before.restarted) {
      emit(thread_end, closed);
    } else {
      opening = closed;
      opening_end = thread_end;
    }
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const bool closes = in_block.all.restarted != 0;
  const Sum before_tile =
      look_back(reduction.look_back + 1, reduction.tiles, tile, in_block.all, sums.identity(), sums, closes);
  if (closes && threadIdx.x == 0) emit(opening_end, op.combine(before_tile.state, opening));
}

}  // namespace

void segmented_reduce(const Call& call, CUstream_st* stream) {
  const SegmentedReduceOperands operands(call);
  const SegmentEnds ends = operands.ends();
  if (operands.segments.rows * operands.segments.heads_count == 0) return;
  operands.dispatch<true>(call, [&](auto op) {
    using Operator = decltype(op);
    using State = typename Operator::State;
    Workspace workspace(call.results.back().data, call.results.back().size());
    const auto scratch = operands.layout(workspace, sizeof(State));
    const int64_t tiles = operands.tiles();
    check(call, cudaMemsetAsync(scratch.look_back, 0, scratch.look_back_words * sizeof(uint64_t), stream));
    const auto partition_blocks = static_cast<unsigned>(ceil_div<int64_t>((tiles + 1) * kWarp, kThreads));
    partition_units<<<partition_blocks, kThreads, 0, stream>>>(ends, tiles, scratch.items_before);
    check_launch(call);
    const SegmentedReduction<Operator> reduction{static_cast<const typename Operator::Element*>(operands.x),
                                                 is_aligned(operands.x),
                                                 ends,
                                                 tiles,
                                                 scratch.items_before,
                                                 scratch.look_back,
                                                 {operands.result, operands.wide_result}};
    reduce_segments<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(reduction, op);
    check_launch(call);
  });
}

}  // namespace cuda

}  // namespace mgpu
