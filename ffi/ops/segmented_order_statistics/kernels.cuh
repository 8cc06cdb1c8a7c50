// The operands' ranks are the sought positions in a sorted segment. The rank of a key
// is an unsigned word in the order of the keys (key_order.h). A group of lanes, or the warp, sorts
// a short segment in registers. For a longer segment, the warp halves an interval of words that
// contains the sought item, until it is one word or the warp can sort its items. Long segments are
// listed with their parts, and each pass over them finds one more digit of the sought items' words.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/block/list_segment.cuh"
#include "cuda/block/segment_groups.cuh"
#include "cuda/block/sort_lanes.cuh"
#include "ops/order_statistics/rank_digits.cuh"
#include "ops/segmented_order_statistics/plan.h"

namespace mgpu::cuda::segment_ranks {

constexpr int kThreads = 128;
constexpr int kBlocksPerProcessor = 6;
constexpr int kDigitThreads = kSegmentDigits;

template <typename Order>
using SegmentDigits = ranking::RankDigits<Order, kMaxSegmentRanks, kSegmentDigits, kDigitThreads>;

template <typename Order_>
struct Task {
  using Order = Order_;
  using Word = typename Order::Word;
  using Code = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;  // the type that shuffles move
  SegmentedOrderStatisticsOperands operands;
  SegmentedOrderStatisticsOperands::Scratch scratch;
  Order order;

  // An empty segment begins at 0, because load_group reads an item even then: the first of the row.
  __device__ RowSegment segment(int64_t i) const {
    const int64_t row = operands.rows == 1 ? 0 : i / operands.segments, number = i - row * operands.segments;
    const Range<int64_t> range = operands.segment(row, number);
    return {row, number, range.size() == 0 ? 0 : range.begin, range.size()};
  }
  __device__ const Word* items(int64_t row, int64_t begin) const {
    return static_cast<const Word*>(operands.x) + row * operands.x_stride + begin;
  }
  __device__ void put(const RowSegment& segment, int k, Word key) const {
    static_cast<Word*>(operands.values)[operands.place(segment.row, k, segment.number)] = key;
  }
  __device__ void put_rank(const RowSegment& segment, int k, Word rank) const {
    put(segment, k, key_of_rank(order, rank));
  }
};

// Each group of `lanes` lanes sorts the codes of its segment in registers, copies
// them to `room`, and stores the sought items. All lanes of a warp call this.
template <int kItems, typename Task>
__device__ __forceinline__ void find_sorted(const Task& task, const RowSegment& segment, int ranks, int lanes,
                                            typename Task::Code* room) {
  using Word = typename Task::Word;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), size = static_cast<int>(segment.size);
  Word own[kItems];
  load_group(task.items(segment.row, segment.begin), size, lanes, own);
  using Code = typename Task::Code;
  Code codes[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) codes[i] = i * lanes + lane < size ? task.order.encode(own[i]) : ~Code{0};
  sort_groups<kItems>(codes, lanes);
  __syncwarp();  // the codes of the previous segment have been read
#pragma unroll
  for (int i = 0; i < kItems; ++i) room[i * kWarp + threadIdx.x % kWarp] = codes[i];
  __syncwarp();
#pragma unroll 1
  for (int k = lane; k < ranks; k += lanes) {
    const auto sought = static_cast<int>(task.operands.rank(segment.row, k, segment.number, maximum(size, 1)));
    const auto code = static_cast<Word>(room[sorted_place<kItems>(sought, lanes)]);
    task.put(segment, k, task.order.decode(task.order.last_equal(code)));
  }
}

// Takes the fewest registers that have room for all segments of the warp's groups.
template <int kItems = kLeastLaneItems, typename Task>
__device__ __forceinline__ void find_short(const Task& task, const RowSegment& segment, int ranks, int lanes,
                                           typename Task::Code* room) {
  if constexpr (kItems < kMostLaneItems) {
    if (__any_sync(~0u, segment.size > lanes * kItems))
      return find_short<2 * kItems>(task, segment, ranks, lanes, room);
  }
  find_sorted<kItems>(task, segment, ranks, lanes, room);
}

template <typename Order>
class WarpSegment {
  using Word = typename Order::Word;
  using Code = typename Task<Order>::Code;

 public:
  __device__ WarpSegment(Order order, const Word* items, int size, Code* room)
      : order_(order), items_(items), size_(size), lane_(static_cast<int>(threadIdx.x % kWarp)), room_(room) {}

  __device__ Word at(int sought) {
    if (sought == size_ - 1) return last();
    if (sought < before_ || sought >= before_ + within_) narrow(sought);
    return low_ == high_ ? low_ : static_cast<Word>(shuffle(sorted_, sought - before_));
  }

 private:
  __device__ __forceinline__ Word rank(int i) const { return order_.rank(order_.encode(items_[i])); }

  __device__ Word last() const {
    Code greatest = 0;
    for (int i = lane_; i < size_; i += kWarp) greatest = maximum<Code>(greatest, rank(i));
    return static_cast<Word>(fold_warp(greatest, [](Code a, Code b) { return maximum(a, b); }));
  }

  __device__ int count_up_to(Word bound) const {
    int count = 0;
#pragma unroll 4
    for (int i = lane_; i < size_; i += kWarp) count += rank(i) <= bound;
    return fold_warp(count, [](int a, int b) { return a + b; });
  }

  // Finds an interval of words that contains the sought item, and has at most 32 items or only one word.
  __device__ void narrow(int sought) {
    low_ = 0;
    high_ = static_cast<Word>(~Word{0});
    before_ = 0;
    within_ = size_;
    while (within_ > kWarp && low_ < high_) {
      const Word middle = static_cast<Word>(low_ + static_cast<Word>(high_ - low_) / 2);
      const int up_to = count_up_to(middle);
      if (sought < up_to) {
        high_ = middle;
        within_ = up_to - before_;
      } else {
        low_ = static_cast<Word>(middle + 1);
        within_ -= up_to - before_;
        before_ = up_to;
      }
    }
    if (low_ < high_) sort();
  }

  __device__ void sort() {
    int listed = 0;
    for (int begin = 0; begin < size_; begin += kWarp) {
      const int i = begin + lane_;
      const Word word = i < size_ ? rank(i) : Word{0};
      const bool is_within = i < size_ && word >= low_ && word <= high_;
      const unsigned lanes = __ballot_sync(~0u, is_within);
      if (is_within) room_[listed + __popc(lanes & ((1u << lane_) - 1))] = word;
      listed += __popc(lanes);
    }
    __syncwarp();
    const Code own = lane_ < listed ? room_[lane_] : ~Code{0};
    __syncwarp();  // the room is free again
    sorted_ = sort_lanes<kWarp>(own);
  }

  Order order_;
  const Word* items_;
  int size_;
  int lane_;
  Code* room_;
  Word low_ = 0, high_ = 0;      // the words at the interval's ends
  int before_ = 0, within_ = 0;  // numbers of items below the interval, and in it
  Code sorted_ = 0;
};

// Lists a long segment, and clears the state of the search for its items. Returns false if a list is full. All lanes of
// a warp call this.
template <typename Order>
__device__ bool begin_long_segment(const Task<Order>& task, const RowSegment& segment) {
  const auto& scratch = task.scratch;
  const int place = list_segment(scratch.list, segment);
  if (place < 0) return false;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t ranks = task.operands.rank_count, begin = place * ranks;
  for (int64_t i = begin + lane; i < begin + ranks; i += kWarp) {
    scratch.prefixes[i] = 0;
    scratch.before[i] = 0;
  }
  for (int64_t i = begin * kSegmentDigits + lane; i < (begin + ranks) * kSegmentDigits; i += kWarp) {
    scratch.counts[i] = 0;
  }
  return true;
}

// All lanes of a warp call this.
template <typename Order>
__device__ void find_by_warp(const Task<Order>& task, const RowSegment& segment, typename Task<Order>::Code* room) {
  using Word = typename Order::Word;
  const auto ranks = static_cast<int>(task.operands.rank_count);
  const auto size = static_cast<int>(minimum(segment.size, kWarpSegment));
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (segment.size > kWarpSegment) {
    if (!begin_long_segment(task, segment) && lane < ranks) task.put(segment, lane, Word{0});
    return;
  }
  const int own = lane < ranks ? static_cast<int>(task.operands.rank(segment.row, lane, segment.number, size)) : 0;
  WarpSegment<Order> search(task.order, task.items(segment.row, segment.begin), size, room);
  Word found = 0;
  for (int k = 0; k < ranks; ++k) {
    const Word rank = search.at(shuffle(own, k));
    if (lane == k) found = rank;
  }
  if (lane < ranks) task.put_rank(segment, lane, found);
}

// A group of 2^log_lanes lanes has a segment. The warp
// then takes the segments that are too long for a group.
template <typename Order>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    find_in_segments(const __grid_constant__ Task<Order> task, int log_lanes) {
  __shared__ typename Task<Order>::Code rooms[kThreads / kWarp][kWarp * kMostLaneItems];
  auto* const room = rooms[threadIdx.x / kWarp];
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) >> log_lanes;
  const bool exists = i < task.operands.rows * task.operands.segments;
  for_each_segment<kMostLaneItems>(exists ? task.segment(i) : RowSegment{}, exists, 1 << log_lanes,
                                   [&](const RowSegment& segment, int lanes, bool exists) {
                                     if (segment.size <= kWarp * kMostLaneItems) {
                                       find_short(task, segment,
                                                  exists ? static_cast<int>(task.operands.rank_count) : 0, lanes, room);
                                     } else {
                                       find_by_warp(task, segment, room);
                                     }
                                   });
}

// Each block takes parts of long segments.
template <typename Order>
__global__ void __launch_bounds__(kDigitThreads)
    count_segment_digits(const __grid_constant__ Task<Order> task, ranking::DigitPass pass) {
  using Digits = SegmentDigits<Order>;
  const auto& scratch = task.scratch;
  const int64_t parts = minimum<int64_t>(scratch.list.listed[1], scratch.list.parts_room);
  const auto ranks = static_cast<int>(task.operands.rank_count);
  for (int64_t i = blockIdx.x; i < parts; i += gridDim.x) {
    const LongPart part = scratch.list.parts[i];
    if (part.segment < 0) continue;
    const RowSegment segment = scratch.list.segments[part.segment];
    const int64_t first = int64_t{part.segment} * ranks;
    const ranking::SoughtItems<Order> sought{task.order,
                                             task.items(segment.row, segment.begin),
                                             ranks,
                                             scratch.prefixes + first,
                                             scratch.before + first,
                                             scratch.counts + first * kSegmentDigits};
    const int64_t begin = part.part * kLongSegmentPart;
    Digits::count(sought, pass, begin, minimum(begin + kLongSegmentPart, segment.size));
    if (is_last_block(scratch.list.finished + part.segment, ceil_div(segment.size, kLongSegmentPart))) {
      Digits::find(
          sought, pass, [&](int k) { return task.operands.rank(segment.row, k, segment.number, segment.size); },
          [&](int k, typename Order::Word rank) { task.put_rank(segment, k, rank); });
    }
    __syncthreads();
  }
}

}  // namespace mgpu::cuda::segment_ranks
