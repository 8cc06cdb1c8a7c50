// Scans that restart at heads and at the start of each row.
#pragma once

#include "cuda/block/look_back.cuh"
#include "cuda/block/partition.cuh"
#include "cuda/ptx.cuh"
#include "ops/scan/problem.cuh"

namespace mgpu::cuda::scanning {

// The states of a tile are in registers. Offsets in a tile are in the order of the scan: a reverse scan counts them
// from the end of the tile's memory.
template <typename Operator>
struct Shape {
  static constexpr int kVector = Vector<typename Operator::Element>::kItems;
  static constexpr int kItems = [] {
    using Element = typename Operator::Element;
    if constexpr (IsItem<Element>) {
      return kVector * item_shape<Element>().segment_rows(sizeof(typename Operator::State));
    } else {
      return scan_segments_shape(sizeof(typename Operator::State), sizeof(Element)).items;
    }
  }();
  static constexpr int kRows = kItems / kVector;
  static constexpr int kTile = kThreads * kItems;
  static_assert(kRows * kVector == kItems && kItems <= 32);

  __device__ __forceinline__ static int offset(int row) {
    const int warp = threadIdx.x / kWarp;
    return (warp * kItems + row * kVector) * kWarp + static_cast<int>(threadIdx.x) % kWarp * kVector;
  }
};

// The least number of blocks on a multiprocessor.
template <typename Operator>
constexpr int kBlocks = sizeof(typename Operator::State) > 4 || sizeof(typename Operator::Element) == 1 ? 2 : 3;

// Fills ScanTask::listed, one warp per tile. A forward scan restarts at a head, a reverse scan at the item before it.
template <int kBlock = kThreads>
__global__ void __launch_bounds__(kBlock)
    list_heads(Segments segments, int64_t tiles, int tile_items, bool reverse, int64_t* listed) {
  start_next_kernel();
  const int64_t tile = (int64_t{blockIdx.x} * kBlock + threadIdx.x) / kWarp;
  if (tile > tiles) return;
  const int64_t heads = segments.listed_from(tile * tile_items + reverse, [](auto begin, auto end, auto before) {
    return warp_partition_point(begin, end, before);
  });
  if (threadIdx.x % kWarp == 0) listed[tile] = heads;
}

// The tile begins at `begin`. There is one byte per position, in the order of the scan.
template <int kTile>
__device__ void mark_restarts(uint8_t* restarts, const Segments& segments, int64_t begin, Range<int64_t> listed,
                              bool reverse) {
  const int64_t first = begin + reverse;
  segments.mark_heads({first, minimum(first + kTile, segments.total())}, listed, threadIdx.x, kThreads,
                      [&](int64_t position) {
                        const int i = static_cast<int>(position - first);
                        restarts[reverse ? kTile - 1 - i : i] = 1;
                      });
}

template <int kVector>
__device__ __forceinline__ unsigned restart_bits(const uint8_t* restarts) {
  using Word = std::conditional_t<kVector == 1, uint8_t, std::conditional_t<kVector == 2, uint16_t, uint32_t>>;
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < kVector; i += sizeof(Word)) {
    const unsigned marks = *reinterpret_cast<const Word*>(restarts + i);
#pragma unroll
    for (int byte = 0; byte < static_cast<int>(sizeof(Word)); ++byte) bits |= (marks >> (8 * byte) & 1) << (i + byte);
  }
  return bits;
}

// Places count the items of a tile in the order of memory. Places from `live` on are dead, or past the end of the
// array. If there are several rows, each with its own count, other places may be dead too.
template <typename Operator>
struct SegmentTile {
  using Shape = scanning::Shape<Operator>;
  static constexpr int kVector = Shape::kVector;
  const ScanTask<Operator>& task;
  const Operator& op;
  int64_t begin;
  bool counts_by_item;
  int size;
  int live;
  bool whole;

  __device__ __forceinline__ bool is_live(int place) const {
    const Segments& segments = task.segments;
    if (!counts_by_item || place >= live) return place < live;
    const int64_t row = segments.row(begin + place);
    return begin + place - row * segments.length < segments.live(row);
  }

  __device__ __forceinline__ int place_of(int row) const {
    const int offset = Shape::offset(row);
    return task.is_reverse() ? Shape::kTile - kVector - offset : offset;
  }

  // Stores the total of a row if `sum`, the scan's sum at a place of the row, is that total.
  __device__ __forceinline__ void store_total(int64_t row, int64_t row_begin, int place,
                                              const typename Operator::State& sum) const {
    const Segments& segments = task.segments;
    const int64_t last = task.is_reverse() ? 0 : maximum<int64_t>(segments.live(row), 1) - 1;
    if (task.totals.given() && begin + place - row_begin == last) {
      task.totals.store(row, op.finish(sum, row_begin));
    }
  }

  // Results are in the order of the scan.
  __device__ __forceinline__ void store(const typename Operator::Result (&results)[kVector], int first) const {
    typename Operator::Result placed[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) placed[k] = task.is_reverse() ? results[kVector - 1 - k] : results[k];
    if (whole) {
      store_results(task.result, begin + first, placed);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int place = first + k;
        if (place < size) task.result.store(begin + place, is_live(place) ? placed[k] : op.dead());
      }
    }
  }
};

// The sum of the preceding tiles, and of the block's preceding warps. The last tile stores the total, if it is
// requested, of a single row.
template <typename Operator, typename Sums, typename Sum>
__device__ __forceinline__ Sum sum_before(const ScanTask<Operator>& task, const Operator& op, const Sums& sums,
                                          const int64_t& index, bool mixes_rows, const Sum& warp_sum,
                                          Sum (&warp_sums)[kWarps], Sum& shared_before) {
  const auto in_block = scan_warps<kWarps>(warp_sums, warp_sum, sums.identity(), sums);
  if (threadIdx.x < kWarp) {
    const Sum before_tile = look_back(task.look_back + 1, task.tiles, index, in_block.all, sums.identity(), sums);
    if (threadIdx.x == 0) {
      shared_before = before_tile;
      if (task.totals.given() && !mixes_rows && index == task.tiles - 1) {
        task.totals.store(0, op.finish(Sums::state(sums(before_tile, in_block.all)), 0));
      }
    }
  }
  __syncthreads();
  return sums(shared_before, in_block.before);
}

// Bit row * kVector + k of the result says whether item k of the thread's vector `row` restarts the scan.
template <typename Shape, typename Operator>
__device__ __forceinline__ unsigned find_heads(const ScanTask<Operator>& task, uint8_t* restarts, int64_t begin,
                                               int64_t in_memory) {
  unsigned heads = 0;
  mark_restarts<Shape::kTile>(restarts, task.restarts, begin, {task.listed[in_memory], task.listed[in_memory + 1]},
                              task.is_reverse());
  __syncthreads();
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row) {
    heads |= restart_bits<Shape::kVector>(restarts + Shape::offset(row)) << (row * Shape::kVector);
  }
  return heads;
}

// Tiles run on across rows.
template <typename Operator>
__global__ void __launch_bounds__(kThreads, kBlocks<Operator>) scan_segments(ScanTask<Operator> task, Operator op) {
  using State = typename Operator::State;
  using Element = typename Operator::Element;
  using Shape = Shape<Operator>;
  using Sums = Sums<Operator, true>;
  using Sum = typename Sums::Value;
  constexpr int kRows = Shape::kRows;
  constexpr int kVector = Shape::kVector;
  __shared__ int64_t ticket;
  __shared__ alignas(16) uint8_t restarts[Shape::kTile];
  __shared__ Sum warp_sums[kWarps];
  __shared__ Sum shared_before;

  const Segments& segments = task.segments;
  const Sums sums{op};
  for (int i = threadIdx.x; i < Shape::kTile / 16; i += kThreads) reinterpret_cast<uint4*>(restarts)[i] = uint4{};
  wait_for_last_kernel();
  const int64_t index = take_ticket(task.look_back, ticket);  // in the order of the scan
  const int64_t in_memory = task.is_reverse() ? task.tiles - 1 - index : index;
  const int64_t begin = in_memory * Shape::kTile;
  const bool mixes_rows = segments.rows > 1;
  const bool counts_by_item = mixes_rows && segments.counts.given();
  const bool knows_rows = mixes_rows && (task.totals.given() || Operator::kGivesIndex);
  const int size = static_cast<int>(minimum<int64_t>(segments.total() - begin, Shape::kTile));
  const int live = mixes_rows ? size : static_cast<int>(clamp<int64_t>(segments.live(0) - begin, 0, size));
  const bool whole = task.aligned && live == Shape::kTile && !counts_by_item;
  const SegmentTile<Operator> tile{task, op, begin, counts_by_item, size, live, whole};

  const auto x = task.x + begin;
  State states[kRows][kVector];
  if (whole) {
    Vector<Element> vectors[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) vectors[row] = Vector<Element>::load(x, tile.place_of(row));
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int mirrored = kVector - 1 - k;
        states[row][k] = op.extract(task.is_reverse() ? vectors[row].items[mirrored] : vectors[row].items[k],
                                    begin + tile.place_of(row) + (task.is_reverse() ? mirrored : k));
      }
    }
  } else {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int place = tile.place_of(row) + (task.is_reverse() ? kVector - 1 - k : k);
        states[row][k] = tile.is_live(place) ? op.extract(x[place], begin + place) : op.identity();
      }
    }
  }

  const unsigned heads = find_heads<Shape>(task, restarts, begin, in_memory);
  const auto heads_up_to = [&](int row, int k) {  // the heads among a vector's items 0 .. k
    return heads >> (row * kVector) & ((2u << k) - 1);
  };
  Sum warp_sum = sums.identity();
  State before_vector[kRows];
  unsigned open = 0;  // bit row: nothing in the warp restarts before the thread's vector
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int k = 1; k < kVector; ++k) {
      const State sum = op.combine(states[row][k - 1], states[row][k]);
      states[row][k] = choose(heads_up_to(row, k) >> k, states[row][k], sum);
    }
    const unsigned restarting = __ballot_sync(0xffffffffu, heads_up_to(row, kVector - 1) != 0);
    const auto in_row = scan_warp<true>(op, states[row][kVector - 1], restarting);
    const Sum before = sums(warp_sum, in_row.before);
    before_vector[row] = Sums::state(before);
    if (!Sums::restarted(before)) open |= 1u << row;
    warp_sum = sums(warp_sum, in_row.all);
  }

  const State before_warp =
      Sums::state(sum_before(task, op, sums, index, mixes_rows, warp_sum, warp_sums, shared_before));

#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int first = tile.place_of(row);
    const State before = choose(open >> row & 1, op.combine(before_warp, before_vector[row]), before_vector[row]);
    typename Operator::Result results[kVector];
    State previous = before;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const State sum = choose(heads_up_to(row, k), states[row][k], op.combine(before, states[row][k]));
      const State kept = choose(!task.is_exclusive(), sum, choose(heads_up_to(row, k) >> k, op.identity(), previous));
      previous = sum;
      const int place = first + (task.is_reverse() ? kVector - 1 - k : k);
      int64_t row_begin = 0;
      if (knows_rows && place < size) {
        const int64_t row_of_item = segments.row(begin + place);
        row_begin = row_of_item * segments.length;
        tile.store_total(row_of_item, row_begin, place, sum);
      }
      results[k] = op.finish(kept, row_begin);
    }
    tile.store(results, first);
  }
}

}  // namespace mgpu::cuda::scanning
