#pragma once

#include "algorithm/serial_merge.h"
#include "cuda/block/serial_merge.cuh"
#include "cuda/block/tile_heads.cuh"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

template <typename Word, bool kIndexed>
struct Item {
  Word code;
  int from;
};
template <typename Word>
struct Item<Word, false> {
  Word code;
};

// `heads` has a bit for each item that starts a segment.
template <int kItems, typename Order, typename Entry>
__device__ void sort_items(Entry (&items)[kItems], const Order& order, unsigned heads) {
  const auto less = [&](const Entry& a, const Entry& b) { return order.less(a.code, b.code); };
  constexpr bool kWrittenOut = !IsCompiled<Order>;
  if (__any_sync(0xffffffffu, heads & ~1u)) {
    odd_even_sort<kWrittenOut>(items, less, [&](int i) { return (heads >> i) & 1; });
  } else if constexpr (Order::kTotal && sizeof(Entry) == sizeof(typename Order::Word)) {
    typename Order::Word codes[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) codes[i] = items[i].code;
    network_sort(codes);
#pragma unroll
    for (int i = 0; i < kItems; ++i) items[i].code = codes[i];
  } else {
    odd_even_sort<kWrittenOut>(items, less, [](int) { return false; });
  }
}

// Sorts a thread's codes within segments in shared memory, by binary insertion, which
// makes few comparisons. `heads` has a bit for each code that starts a segment.
template <int kItems, typename Order>
__device__ void insert_items(typename Order::Word* codes, const Order& order, unsigned heads) {
#pragma unroll 1
  for (int i = 1; i < kItems; ++i) {
    const auto code = codes[i];
    int place = kWarp - 1 - __clz((heads & ((2u << i) - 1)) | 1);  // the place of the segment's first code
    for (int end = i; place < end;) {
      const int middle = (place + end) / 2;
      if (order.less(code, codes[middle])) {
        end = middle;
      } else {
        place = middle + 1;
      }
    }
#pragma unroll 1
    for (int k = i; k > place; --k) codes[k] = codes[k - 1];
    codes[place] = code;
  }
}

template <typename Order, typename Payload>
struct SortShared {
  using Shape = Problem<Order, Payload>;
  using Heads = TileHeads<Shape::kShape.threads, Shape::kShape.items>;
  typename Order::Word codes[Shape::kTile + 1];
  uint16_t from[Shape::kHasPayload ? Shape::kTile + 1 : 1];
  typename Heads::Shared heads;
};

// Heads that are out of order may give neighbouring
// tiles different segments that overlap. Then
// neither segment is sorted by digits.
template <typename Order, typename Payload>
__device__ void leave_out_overlapping(const Problem<Order, Payload>& problem, int64_t tile) {
  const TileDescriptor pair[2] = {problem.descriptors[tile], problem.descriptors[tile + 1]};
  const Range<int64_t> left = pair[0].segment, right = pair[1].segment;
  if (right.begin >= left.end || (left.begin == right.begin && left.end == right.end)) return;
  for (const TileDescriptor& descriptor : pair) {
    if (!problem.is_merged(descriptor.rounds))
      problem.descriptors[descriptor.first_start(problem.kTile)].is_left_out = 1;
  }
}

// Segments that cross the tile's edges are stored as codes, in the buffer in which their merge rounds start.
template <typename Order, typename Payload>
__device__ __forceinline__ void store_tile(const Problem<Order, Payload>& problem, const Order& order,
                                           SortShared<Order, Payload>& shared, const TileDescriptor& descriptor,
                                           const TileDescriptor& next, int64_t origin, int size) {
  using P = Problem<Order, Payload>;
  constexpr int kItems = P::kShape.items;
  constexpr int kThreads = P::kShape.threads;
  const int64_t first_end = descriptor.segment.end - origin;
  const int64_t last_begin = next.segment.begin - origin;
  const auto rounds_at = [&](int position) {
    return position < first_end ? descriptor.rounds : position >= last_begin ? next.rounds : 0;
  };
  // Segments that are sorted by digits begin or end the tile, and are not stored.
  const int store_begin = problem.is_merged(descriptor.rounds) ? 0 : static_cast<int>(first_end);
  const int store_end =
      problem.is_merged(next.rounds) ? size : static_cast<int>(clamp<int64_t>(maximum(first_end, last_begin), 0, size));
  const auto is_stored = [&](int position) { return position >= store_begin && position < store_end; };
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = i * kThreads + threadIdx.x;
    const int rounds = rounds_at(position);
    if (is_stored(position)) {
      typename Order::Word code = shared.codes[position];
      if constexpr (P::kRanksInTiles) code = problem.input_code(origin + shared.from[position]);
      problem.buffers[rounds % 2].keys[origin + position] = rounds == 0 ? order.decode(code) : code;
    }
  }
  if constexpr (P::kHasPayload) {
    Payload payload[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (position < size) payload[i] = problem.input_payload(origin + shared.from[position]);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (is_stored(position)) problem.buffers[rounds_at(position) % 2].payload[origin + position] = payload[i];
    }
  }
}

template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kShape.threads, Problem<Order, Payload>::kBlocksPerProcessor)
    sort_tiles(const __grid_constant__ Problem<Order, Payload> problem) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kItems = P::kShape.items;
  constexpr int kThreads = P::kShape.threads;
  using Heads = typename SortShared<Order, Payload>::Heads;
  extern __shared__ __align__(16) unsigned char storage[];
  auto& shared = *reinterpret_cast<SortShared<Order, Payload>*>(storage);
  wait_for_last_kernel();

  const int64_t tile = blockIdx.x;
  const int64_t origin = tile * P::kTile;
  const int size = problem.tile_size(tile);
  const Order order = problem.order;
  const auto& order_in_tile = P::order_in_tile(order);
  const auto less = [&](Word a, Word b) { return order_in_tile.less(a, b); };
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = i * kThreads + threadIdx.x;
    if (position < size) shared.codes[position] = problem.tile_code(origin + position);
  }
  const TileDescriptor descriptor = problem.descriptors[tile];
  const TileDescriptor next = problem.descriptors[tile + 1];
  if constexpr (P::kLeavesLongSegments) {
    // This test follows the loads of the codes, which makes sorts of short segments faster.
    if (problem.leaves_long) {
      if (threadIdx.x == 0) leave_out_overlapping(problem, tile);
      if (!problem.is_merged(descriptor.rounds) && descriptor.segment.end >= origin + size) return;
    }
  }
  Heads::mark(shared.heads, problem.segments, origin, size, {descriptor.listed, next.listed});
  const typename Heads::Thread thread = Heads::of_thread(shared.heads, size);

  const int begin = threadIdx.x * kItems;
  if constexpr (IsOfPositions<Order>) {
    static_assert(!P::kHasPayload, "positions are all that moves");
    insert_items<kItems>(shared.codes + begin, order, thread.heads);
  } else {
    Item<Word, P::kHasPayload> items[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      items[i].code = shared.codes[begin + i];
      if constexpr (P::kHasPayload) items[i].from = begin + i;
    }
    sort_items(items, order_in_tile, thread.heads);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      shared.codes[begin + i] = items[i].code;
      if constexpr (P::kHasPayload) shared.from[begin + i] = static_cast<uint16_t>(items[i].from);
    }
  }

  const int first_rounds = merge_rounds(thread.first, kItems);
  const int last_rounds = merge_rounds(thread.last, kItems);
  const int rounds = maximum(first_rounds, last_rounds);
  for (int round = 0; __syncthreads_or(round < rounds); ++round) {
    Word taken[kItems];
    uint32_t from[kItems];
    uint16_t moved[P::kHasPayload ? kItems : 1];
    const bool one = thread.one_segment();
    const bool any_has_two = __any_sync(0xffffffffu, round < rounds && !one);
    if (round < rounds) {
      MergeCursor first = stay_cursor(begin);
      MergeCursor last = first;
      if (round < first_rounds) {
        const MergePair<int> pair = merge_pair(thread.first, kItems, int(threadIdx.x), round);
        if (pair.middle < pair.end) {
          first = merge_cursor(shared.codes, pair.begin, pair.middle, pair.end, begin - pair.begin, less);
        }
      }
      if (round < last_rounds) {
        const MergePair<int> pair = merge_pair(thread.last, kItems, int(threadIdx.x), round);
        if (pair.middle < pair.end) last = {pair.begin, pair.middle, pair.middle, pair.end};
      }
      if (any_has_two) {
        take_merged(shared.codes, begin, first, one ? P::kTile : thread.first.end, last,
                    one ? P::kTile : thread.last.begin, less, taken, from);
      } else {
        take_merged(shared.codes, first, less, taken, from);
      }
      if constexpr (P::kHasPayload) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) moved[i] = shared.from[position_of(from[i], shared.codes)];
      }
    }
    __syncthreads();
    if (round < rounds) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        shared.codes[begin + i] = taken[i];
        if constexpr (P::kHasPayload) shared.from[begin + i] = moved[i];
      }
    }
  }

  store_tile(problem, order, shared, descriptor, next, origin, size);
}

}  // namespace mgpu::cuda::sorting
