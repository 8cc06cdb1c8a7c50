// The threads of a group share a sequence, and each knows the first of its items that is not a result
// yet. The first of all these items is the next result, and its thread then finds its next item. A
// group of lanes has the items of a short segment in registers. A warp reads a longer segment again for
// each result. For the longest segments, blocks find the first items of parts, and the last block of a
// segment to finish selects from these. Above kTopKSteps results, sorts in registers replace the steps.
#pragma once

#include "cuda/block/last_block.cuh"
#include "cuda/block/list_segment.cuh"
#include "cuda/block/ranked_place.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/segment_groups.cuh"
#include "cuda/block/sort_lanes.cuh"
#include "ops/segmented_top_k/plan.h"

namespace mgpu::cuda::segment_top_k {

constexpr int kThreads = 128;
constexpr int kPartThreads = 256;

template <typename Order_>
struct Task {
  using Order = Order_;
  using Word = typename Order::Word;
  using Place = RankedPlace<Word>;
  static constexpr Place kNone = ~Place{0};

  SegmentedTopKOperands operands;
  SegmentedTopKOperands::Scratch scratch;
  Order order;

  // An empty segment begins at 0, because load_group reads an item even then: the first of the row.
  __device__ RowSegment segment(int64_t i) const {
    const int64_t row = operands.rows == 1 ? 0 : i / operands.segments, number = i - row * operands.segments;
    const Range<int64_t> range = operands.segment(row, number);
    return {row, number, range.size() == 0 ? 0 : range.begin, range.size()};
  }
  __device__ const Word* keys(const RowSegment& segment) const {
    return static_cast<const Word*>(operands.x) + (segment.row * operands.x_stride + segment.begin);
  }
  __device__ int wanted(int64_t size) const { return static_cast<int>(minimum(operands.k, size)); }
  __device__ Place place(Word key, uint32_t position) const { return ranked_place(order, order.encode(key), position); }

  __device__ void put(const RowSegment& segment, int i, int64_t position) const {
    const int64_t to = operands.place(segment.row, segment.number) + i;
    static_cast<Word*>(operands.values)[to] = keys(segment)[position];
    operands.indices.set(to, segment.begin + position);
  }
  __device__ void put_none(const RowSegment& segment, int64_t i) const {
    const int64_t to = operands.place(segment.row, segment.number) + i;
    static_cast<Word*>(operands.values)[to] = Word{0};
    operands.indices.set(to, -1);
  }
};

// A place (ranked_place.cuh) holds an item's rank (Order::rank) and position, so places are in the order of the items.
template <int kGroup, typename Place>
__device__ __forceinline__ Place first_of(Place own) {
#pragma unroll
  for (int distance = minimum(kGroup, kWarp) / 2; distance > 0; distance /= 2) {
    own = minimum(own, exchange_words(own, distance));
  }
  if constexpr (kGroup > kWarp) {
    __shared__ Place firsts[kGroup / kWarp];
    __syncthreads();
    own = scan_warps<kGroup / kWarp>(firsts, own, own, [](Place a, Place b) { return minimum(a, b); }).all;
  }
  return own;
}

// Finds the first items of a sequence that kGroup threads share. next(place) gives the first of a thread's own items
// that is not before `place`. The thread that has item i of the result calls put(i, place). All threads of the warp
// call this or, for a larger group, all threads of the block.
template <int kGroup, typename Place, typename Next, typename Put>
__device__ __forceinline__ void find_first(int wanted, Next next, Put put) {
  Place own = next(Place{0});
#pragma unroll 1
  for (int i = 0; __any_sync(~0u, i < wanted); ++i) {
    const Place first = first_of<kGroup>(own);
    if (own == first && i < wanted) {
      put(i, first);
      if (i + 1 < wanted) own = next(first + 1);
    }
  }
}

template <int kGroup, typename Task, typename Put>
__device__ void find_first_keys(const Task& task, const typename Task::Word* keys, int size, int wanted, Put put) {
  using Place = typename Task::Place;
  const auto next = [&](Place from) {
    Place first = Task::kNone;
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x % kGroup); i < size; i += kGroup) {
      const Place place = task.place(keys[i], i);
      if (place >= from) first = minimum(first, place);
    }
    return first;
  };
  find_first<kGroup, Place>(wanted, next, put);
}

template <int kLanes, typename Task>
__device__ __forceinline__ void find_in_registers(const Task& task, const RowSegment& segment) {
  using Place = typename Task::Place;
  const int lane = static_cast<int>(threadIdx.x % kLanes), size = static_cast<int>(segment.size);
  const typename Task::Word* const keys = task.keys(segment) + lane;
  typename Task::Word own[kTopKLaneItems];
#pragma unroll
  for (int i = 0; i < kTopKLaneItems; ++i) own[i] = i * kLanes + lane < size ? keys[i * kLanes] : 0;
  Place places[kTopKLaneItems];
#pragma unroll
  for (int i = 0; i < kTopKLaneItems; ++i) {
    const int position = i * kLanes + lane;
    places[i] = position < size ? task.place(own[i], position) : Task::kNone;
  }
  const auto next = [&](Place from) {
    Place first = Task::kNone;
#pragma unroll
    for (Place place : places) {
      if (place >= from) first = minimum(first, place);
    }
    return first;
  };
  find_first<kLanes, Place>(task.wanted(size), next,
                            [&](int i, Place place) { task.put(segment, i, static_cast<uint32_t>(place)); });
}

// Calls find() for a segment that is too long for a group of lanes, or lists the segment if it is too long for a warp.
// All lanes of a warp call this.
template <typename Task, typename Find>
__device__ void find_by_warp(const Task& task, const RowSegment& segment, Find find) {
  if (segment.size <= kTopKWarpSegment) {
    find();
  } else if (list_segment(task.scratch.list, segment) < 0) {
    for (int64_t i = threadIdx.x % kWarp; i < task.operands.k; i += kWarp) task.put_none(segment, i);
  }
}

template <typename Order, int kLanes>
__global__ void __launch_bounds__(kThreads) find_in_segments(const __grid_constant__ Task<Order> task) {
  const SegmentedTopKOperands& operands = task.operands;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  RowSegment segment{};
  if (i < operands.rows * operands.segments) {
    segment = task.segment(i);
#pragma unroll 1
    for (int64_t none = segment.size + lane; none < operands.k; none += kLanes) task.put_none(segment, none);
  }
  const bool is_long = segment.size > kLanes * kTopKLaneItems;
  unsigned longer = __ballot_sync(~0u, is_long && lane == 0);
  RowSegment own = segment;
  if (is_long) own.size = 0;
  find_in_registers<kLanes>(task, own);
  for (; longer != 0; longer &= longer - 1) {
    const RowSegment next = shuffle(segment, __ffs(longer) - 1);
    find_by_warp(task, next, [&] {
      find_first_keys<kWarp>(
          task, task.keys(next), static_cast<int>(next.size), task.wanted(next.size),
          [&](int i, typename Task<Order>::Place place) { task.put(next, i, static_cast<uint32_t>(place)); });
    });
  }
}

// Sorts a group's items in registers, and stores the wanted ones through `room`. All lanes of a warp call this.
template <int kItems, typename Task>
__device__ __forceinline__ void find_sorted(const Task& task, const RowSegment& segment, int wanted, int lanes,
                                            uint32_t* room) {
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), size = static_cast<int>(segment.size);
  typename Task::Word own[kItems];
  load_group(task.keys(segment), size, lanes, own);
  typename Task::Place places[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = i * lanes + lane;
    places[i] = position < size ? task.place(own[i], position) : Task::kNone;
  }
  sort_groups<kItems>(places, lanes);
  __syncwarp();  // the positions of the previous segment have been read
#pragma unroll
  for (int i = 0; i < kItems; ++i) room[i * kWarp + threadIdx.x % kWarp] = static_cast<uint32_t>(places[i]);
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < wanted; i += lanes) {
    if (i < size) {
      task.put(segment, i, room[sorted_place<kItems>(i, lanes)]);
    } else {
      task.put_none(segment, i);
    }
  }
}

// Finds the first k of the keys begin .. end, which load(i) gives. Lane i < k <= kWarp gets the place of number i of
// them, or kNone; other lanes get places of later keys, or kNone. The warp reads some keys at a time, and sorts them
// with the first k so far, unless no new key comes before the last of these k. `room` has a place for each lane.
template <typename Task, typename Load>
__device__ __forceinline__ typename Task::Place first_of_keys(const Task& task, Load load, int begin, int end,
                                                              typename Task::Place* room) {
  using Place = typename Task::Place;
  constexpr int kNew = kTopKLaneItems - 1;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto last_wanted = static_cast<int>(task.operands.k) - 1;
  Place first = Task::kNone;
#pragma unroll 1
  for (int at = begin; at < end; at += kNew * kWarp) {
    typename Task::Word own[kNew];
#pragma unroll
    for (int i = 0; i < kNew; ++i) own[i] = load(minimum(at + i * kWarp + lane, end - 1));
    const Place last = shuffle_place(first, last_wanted);
    Place places[kTopKLaneItems];
    bool is_before = false;
#pragma unroll
    for (int i = 0; i < kNew; ++i) {
      const int position = at + i * kWarp + lane;
      places[i] = position < end ? task.place(own[i], position) : Task::kNone;
      is_before |= places[i] < last;
    }
    if (!__any_sync(~0u, is_before)) continue;
    places[kNew] = first;
    sort_groups<kTopKLaneItems>(places, kWarp);
    __syncwarp();
    if (lane < kWarp / kTopKLaneItems) {
#pragma unroll
      for (int i = 0; i < kTopKLaneItems; ++i) room[lane * kTopKLaneItems + i] = places[i];
    }
    __syncwarp();
    first = room[lane];
  }
  return first;
}

template <typename Order>
__global__ void __launch_bounds__(kThreads) sort_in_segments(const __grid_constant__ Task<Order> task, int log_lanes) {
  constexpr int kMost = kTopKLaneItems;
  using Place = typename Task<Order>::Place;
  __shared__ uint32_t rooms[kThreads / kWarp][kWarp * kMost];
  __shared__ Place first_rooms[kThreads / kWarp][kWarp];
  uint32_t* const room = rooms[threadIdx.x / kWarp];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) >> log_lanes;
  const bool exists = i < task.operands.rows * task.operands.segments;
  for_each_segment<kMost>(exists ? task.segment(i) : RowSegment{}, exists, 1 << log_lanes,
                          [&](const RowSegment& segment, int lanes, bool exists) {
                            const int wanted = exists ? static_cast<int>(task.operands.k) : 0;
                            if (segment.size > kWarp * kMost) {
                              find_by_warp(task, segment, [&] {
                                const auto* const keys = task.keys(segment);
                                const Place first = first_of_keys(
                                    task, [=](int i) { return keys[i]; }, 0, static_cast<int>(segment.size),
                                    first_rooms[threadIdx.x / kWarp]);
                                if (lane < wanted) task.put(segment, lane, static_cast<uint32_t>(first));
                              });
                            } else if (__any_sync(~0u, segment.size > lanes * kTopKMeanItems)) {
                              find_sorted<kMost>(task, segment, wanted, lanes, room);
                            } else {
                              find_sorted<kTopKMeanItems>(task, segment, wanted, lanes, room);
                            }
                          });
}

// load(i) gives a key. Each warp finds the first items of its share, and one warp sorts these.
template <typename Task, typename Load, typename Put>
__device__ __forceinline__ void find_by_sorts(const Task& task, Load load, int size, Put put) {
  constexpr int kWarps = kPartThreads / kWarp;
  using Place = typename Task::Place;
  __shared__ Place firsts[kWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int share = ceil_div(size, kWarps), begin = minimum(warp * share, size);
  const Place first = first_of_keys(task, load, begin, minimum(begin + share, size), firsts[warp]);
  __syncwarp();
  firsts[warp][lane] = first;
  __syncthreads();
  if (warp == 0) {
    Place places[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) places[i] = firsts[i][lane];
    sort_groups<kWarps>(places, kWarp);
    const int wanted = task.wanted(size);
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      if (lane * kWarps + i < wanted) put(lane * kWarps + i, places[i]);
    }
  }
  __syncthreads();
}

// `kept` has the positions of the first items of each part, in sorted order.
template <bool kSorts, typename Order>
__device__ void find_in_kept(const Task<Order>& task, const RowSegment& segment, const uint32_t* kept) {
  using Place = typename Task<Order>::Place;
  const auto k = static_cast<uint32_t>(task.operands.k);
  const auto* const keys = task.keys(segment);
  const auto position = [&](uint32_t i) { return i / k * kLongSegmentPart + __ldcg(kept + i); };
  const auto put = [&](int i, Place place) { task.put(segment, i, position(static_cast<uint32_t>(place))); };
  if constexpr (kSorts) {
    const int64_t parts = ceil_div(segment.size, kLongSegmentPart);
    const int count = static_cast<int>((parts - 1) * k) + task.wanted(segment.size - (parts - 1) * kLongSegmentPart);
    return find_by_sorts(task, [&](int i) { return keys[position(i)]; }, count, put);
  }
  const auto next = [&](Place from) {
    Place first = task.kNone;
    for (int64_t part = threadIdx.x; part * kLongSegmentPart < segment.size; part += kPartThreads) {
      const auto begin = static_cast<uint32_t>(part) * k;
      const int count = task.wanted(segment.size - part * kLongSegmentPart);
      for (uint32_t i = begin; i < begin + count; ++i) {
        const Place place = task.place(keys[position(i)], i);
        if (place < from) continue;
        first = minimum(first, place);
        break;
      }
    }
    return first;
  };
  find_first<kPartThreads, Place>(static_cast<int>(k), next, put);
}

// Each block takes parts of long segments.
template <typename Order, bool kSorts>
__global__ void __launch_bounds__(kPartThreads) find_in_parts(const __grid_constant__ Task<Order> task) {
  using Place = typename Task<Order>::Place;
  const LongSegments& list = task.scratch.list;
  const int64_t parts = minimum<int64_t>(list.listed[1], list.parts_room);
  for (int64_t i = blockIdx.x; i < parts; i += gridDim.x) {
    const LongPart part = list.parts[i];
    if (part.segment < 0) continue;
    const RowSegment segment = list.segments[part.segment];
    const int64_t begin = part.part * kLongSegmentPart;
    const auto size = static_cast<int>(minimum(kLongSegmentPart, segment.size - begin));
    uint32_t* const kept = task.scratch.kept + i * task.operands.k;
    const auto* const keys = task.keys(segment) + begin;
    const auto keep = [&](int i, Place place) { kept[i] = static_cast<uint32_t>(place); };
    if constexpr (!kSorts) {
      find_first_keys<kPartThreads>(task, keys, size, task.wanted(size), keep);
    } else {
      find_by_sorts(task, [=](int i) { return keys[i]; }, size, keep);
    }
    if (is_last_block(list.finished + part.segment, ceil_div(segment.size, kLongSegmentPart))) {
      find_in_kept<kSorts>(task, segment, kept - part.part * task.operands.k);
    }
    __syncthreads();
  }
}

}  // namespace mgpu::cuda::segment_top_k
