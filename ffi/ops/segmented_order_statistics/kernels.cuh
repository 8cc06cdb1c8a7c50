// The kernels of segmented_order_statistics. `sought` is a position in a sorted segment. The rank of a key is an
// unsigned word in the order of the keys (key_order.h). A warp takes a segment. It halves an interval of ranks that
// contains the sought item, until the interval has at most 32 items, and sorts these. Each halving reads the segment
// again, from the first-level cache. Long segments are listed with their parts, and each pass over them finds one more
// digit of the ranks of the sought items.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/block/list_segment.cuh"
#include "cuda/block/sort_lanes.cuh"
#include "ops/order_statistics/rank_digits.cuh"
#include "ops/segmented_order_statistics/plan.h"

namespace mgpu::cuda::segment_ranks {

constexpr int kThreads = 128;
constexpr int kDigitThreads = kSegmentDigits;

template <typename Order>
using SegmentDigits = ranking::RankDigits<Order, kMaxSegmentRanks, kSegmentDigits, kDigitThreads>;

template <typename Order_>
struct Task {
  using Order = Order_;
  using Word = typename Order::Word;
  SegmentedOrderStatisticsOperands operands;
  SegmentedOrderStatisticsOperands::Scratch scratch;
  Order order;

  __device__ const Word* items(int64_t row, int64_t begin) const {
    return static_cast<const Word*>(operands.x) + row * operands.x_stride + begin;
  }
  __device__ void put(int64_t row, int64_t k, int64_t number, Word rank) const {
    static_cast<Word*>(operands.values)[operands.place(row, k, number)] = key_of_rank(order, rank);
  }
};

// A warp's search for items of its segment, which is not empty.
template <typename Order>
class WarpSegment {
  using Word = typename Order::Word;
  using Lane = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;  // the type that shuffles move

 public:
  // `room` holds a rank for each lane.
  __device__ WarpSegment(Order order, const Word* items, int size, Word* room)
      : order_(order), items_(items), size_(size), lane_(static_cast<int>(threadIdx.x % kWarp)), room_(room) {}

  // The rank of item number `sought` of the sorted segment.
  __device__ Word at(int sought) {
    if (sought == size_ - 1 && size_ > kWarp) return last();
    if (sought < before_ || sought >= before_ + within_) narrow(sought);
    return low_ == high_ ? low_ : static_cast<Word>(shuffle(sorted_, sought - before_));
  }

 private:
  __device__ __forceinline__ Word rank(int i) const { return order_.rank(order_.encode(items_[i])); }

  __device__ Word last() const {
    Lane greatest = 0;
    for (int i = lane_; i < size_; i += kWarp) greatest = maximum<Lane>(greatest, rank(i));
    return static_cast<Word>(fold_warp(greatest, [](Lane a, Lane b) { return maximum(a, b); }));
  }

  __device__ int count_up_to(Word bound) const {
    int count = 0;
#pragma unroll 4
    for (int i = lane_; i < size_; i += kWarp) count += rank(i) <= bound;
    return fold_warp(count, [](int a, int b) { return a + b; });
  }

  // Finds an interval that contains the sought item and has at most 32 items, or only one rank.
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

  // Sorts the items of the interval: each lane gets one.
  __device__ void sort() {
    Lane own = static_cast<Lane>(~Lane{0});
    if (size_ <= kWarp) {
      if (lane_ < size_) own = rank(lane_);
    } else {
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
      if (lane_ < listed) own = room_[lane_];
      __syncwarp();  // the room is free again
    }
    sorted_ = sort_lanes<kWarp>(own);
  }

  Order order_;
  const Word* items_;
  int size_;
  int lane_;
  Word* room_;
  Word low_ = 0, high_ = 0;      // the ranks of the interval's ends
  int before_ = 0, within_ = 0;  // numbers of items below the interval, and in it
  Lane sorted_ = 0;
};

// Lists a long segment, and clears the state of the search for its items. Returns false if a list is full. All lanes of
// a warp call this function together.
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

// Finds the items of short segments, and lists the long ones. One warp per segment.
template <typename Order>
__global__ void __launch_bounds__(kThreads) find_in_segments(const __grid_constant__ Task<Order> task) {
  using Word = typename Order::Word;
  __shared__ Word rooms[kThreads / kWarp][kWarp];
  const SegmentedOrderStatisticsOperands& operands = task.operands;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t all = int64_t{blockIdx.x} * (kThreads / kWarp) + warp;
  if (all >= operands.rows * operands.segments) return;
  const int64_t row = all / operands.segments, number = all - row * operands.segments;
  const int ranks = static_cast<int>(operands.rank_count);
  const Range<int64_t> range = operands.segment(row, number);
  if (range.size() > kWarpSegment && begin_long_segment(task, {row, number, range.begin, range.size()})) return;
  if (range.size() == 0 || range.size() > kWarpSegment) {
    if (lane < ranks) static_cast<Word*>(operands.values)[operands.place(row, lane, number)] = 0;
    return;
  }
  const auto size = static_cast<int>(range.size());
  const int own = lane < ranks ? static_cast<int>(operands.rank(row, lane, number, size)) : 0;  // the sought position
  WarpSegment<Order> segment(task.order, task.items(row, range.begin), size, rooms[warp]);
  Word found = 0;
  for (int k = 0; k < ranks; ++k) {
    const Word rank = segment.at(shuffle(own, k));
    if (lane == k) found = rank;
  }
  if (lane < ranks) task.put(row, lane, number, found);
}

// One pass over all long segments, which finds one more digit. Each block takes parts of them.
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
          [&](int k, typename Order::Word rank) { task.put(segment.row, k, segment.number, rank); });
    }
    __syncthreads();
  }
}

}  // namespace mgpu::cuda::segment_ranks
