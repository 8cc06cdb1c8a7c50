// Narrows long rows down before the passes of order_statistics. A sample gives, for each sought rank, an interval that
// should contain its item. One pass collects the items between the ends of intervals, and counts those below and at the
// ends. The passes then go over the collected items or, if these do not suffice, over the whole row
// (RankIntervals::holds_all).
#pragma once

#include "cuda/block/select_digits.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/order_statistics/task.cuh"

namespace mgpu::cuda::ranking {

// Items are compared with an interval by words that compare as the keys do (Order::rank).
template <typename Order>
struct Interval {
  using Word = typename Order::Word;
  Word low, high;

  __device__ static bool can_hold(const Order& /*order*/, Word /*low*/) { return true; }
  __device__ void set(const Order& /*order*/, Word low_rank, Word high_rank) {
    low = low_rank;
    high = high_rank;
  }
  __device__ __forceinline__ bool is_above(const Order& order, Word key) const {
    return order.rank(order.encode(key)) < low;
  }
  __device__ __forceinline__ bool reaches(const Order& order, Word key) const {
    return order.rank(order.encode(key)) <= high;
  }
};

// Floats of 32 and 64 bits are compared directly. A NaN is never below an interval, and always possibly inside.
template <typename Word>
  requires(sizeof(Word) >= 4)
struct Interval<FloatOrder<Word>> {
  using Order = FloatOrder<Word>;
  using Float = std::conditional_t<sizeof(Word) == 4, float, double>;
  Float low, high;

  __device__ __forceinline__ static Float to_float(Word key) {
    if constexpr (sizeof(Word) == 4) {
      return __uint_as_float(key);
    } else {
      return __longlong_as_double(static_cast<long long>(key));
    }
  }
  // An interval cannot begin with a NaN: all numbers are below it, but comparisons do not show that.
  __device__ static bool can_hold(const Order& order, Word low_rank) { return !order.is_nan(order.decode(low_rank)); }
  __device__ void set(const Order& order, Word low_rank, Word high_rank) {
    low = to_float(order.decode(low_rank));
    high = to_float(order.decode(high_rank));
  }
  __device__ __forceinline__ bool is_above(const Order& /*order*/, Word key) const { return to_float(key) < low; }
  __device__ __forceinline__ bool reaches(const Order& /*order*/, Word key) const { return !(to_float(key) > high); }
};

// One block per row.
template <typename Order>
__global__ void __launch_bounds__(kRankThreads) find_intervals(const __grid_constant__ RanksTask<Order> task) {
  using Word = typename Order::Word;
  constexpr int kSample = minimum<int>(kRankSampleBytes / sizeof(Word), 1 << 13);
  __shared__ Word sample[kSample];
  __shared__ typename SelectDigits<kRankThreads>::Shared digits;
  __shared__ Word lows[kMaxIntervals], highs[kMaxIntervals];
  const OrderStatisticsOperands& operands = task.operands;
  const int64_t row = blockIdx.x;
  const int64_t live = operands.live(row);
  const int ranks = static_cast<int>(operands.rank_count);
  if (live < kRankSampledRow) return;
  SelectDigits<kRankThreads> select_digits(digits);
  const Word* const keys = static_cast<const Word*>(operands.x) + row * operands.x_stride;
  const int64_t stride = live / kSample;
#pragma unroll 8
  for (int i = threadIdx.x; i < kSample; i += kRankThreads) {
    // A hash selects the place within each part of the row, so that the sample does not match a period of the row.
    const uint64_t place = (static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u >> 32) * static_cast<uint64_t>(stride) >> 32;
    sample[i] = task.order.rank(task.order.encode(keys[i * stride + static_cast<int64_t>(place)]));
  }
  __syncthreads();
  const auto select = [&](int number) {
    // The selection stops once at most 1/256 of the sample is left.
    return select_digits.template operator()<Word>(
        kSample, number, [&](int i) { return sample[i]; }, [](int) { return true; },
        [](const auto& known) { return known.matching <= kSample / 256; });
  };
  for (int i = 0; i < ranks; ++i) {
    const int64_t rank = operands.rank(row, i);
    if (i > 0 && rank >= operands.rank(row, i - 1) && rank - operands.rank(row, i - 1) <= stride) {
      if (threadIdx.x == 0) {  // the previous rank's interval is wide enough for this one
        lows[i] = lows[i - 1];
        highs[i] = highs[i - 1];
      }
      continue;
    }
    // The interval extends five standard deviations to each side, and a few items more.
    const float share = static_cast<float>(rank) / static_cast<float>(live);
    const float deviation = sqrtf(kSample * share * (1 - share));
    const int before = static_cast<int>(kSample * share - 5 * deviation) - 3;
    const int behind = static_cast<int>(kSample * share + 5 * deviation) + 4;
    const Word low = before < 1 ? Word{0} : select(before).lowest();
    const Word high = behind > kSample ? static_cast<Word>(~Word{0}) : select(behind).highest();
    if (threadIdx.x == 0) {
      lows[i] = low;
      highs[i] = high;
    }
  }
  if (threadIdx.x != 0) return;
  RankIntervals& found = task.scratch.intervals[row];
  unsigned placed = 0;
  int count = 0;
  bool can_hold = true;
  while (placed != (1u << ranks) - 1) {
    int first = -1;
    for (int i = 0; i < ranks; ++i) {
      if (!(placed >> i & 1) && (first < 0 || lows[i] < lows[first])) first = i;
    }
    placed |= 1u << first;
    if (count == 0 || lows[first] > static_cast<Word>(found.intervals[count - 1].high)) {
      found.intervals[count].low = lows[first];
      found.intervals[count++].high = highs[first];
      can_hold = can_hold && Interval<Order>::can_hold(task.order, lows[first]);
    } else if (highs[first] > static_cast<Word>(found.intervals[count - 1].high)) {
      found.intervals[count - 1].high = highs[first];
    }
    found.interval_of[first] = count - 1;
  }
  found.count = can_hold ? count : 0;
}

// One thread calls it, once the whole row has been counted.
template <typename Order>
__device__ void place_ranks(const RanksTask<Order>& task, int64_t row) {
  using Word = typename Order::Word;
  const OrderStatisticsOperands& operands = task.operands;
  RankIntervals& found = task.scratch.intervals[row];
  const int ranks = static_cast<int>(operands.rank_count);
  bool holds_all = static_cast<int64_t>(__ldcg(&found.gathered)) <= operands.between_room();
  for (int i = 0; i < ranks; ++i) {
    int64_t earlier = 0;
    for (int j = 0; j < found.interval_of[i]; ++j) earlier += static_cast<int64_t>(__ldcg(&found.intervals[j].between));
    const RankIntervals::Interval& interval = found.intervals[found.interval_of[i]];
    int64_t rank = operands.rank(row, i) - static_cast<int64_t>(__ldcg(&interval.below));
    const auto at_low = static_cast<int64_t>(__ldcg(&interval.at_low));
    const auto at_high = static_cast<int64_t>(__ldcg(&interval.at_high));
    const auto between = static_cast<int64_t>(__ldcg(&interval.between));
    holds_all = holds_all && rank >= 0 && rank < at_low + between + at_high;
    rank -= at_low;
    const bool is_known = rank < 0 || rank >= between;
    found.ranks[i] = is_known ? -1 : earlier + rank;
    if (is_known) {  // the last pass overwrites the result if the interval does not hold the item
      static_cast<Word*>(operands.values)[row * ranks + i] =
          key_of_rank(task.order, static_cast<Word>(rank < 0 ? interval.low : interval.high));
    }
  }
  found.holds_all = holds_all;
}

// A thread's next vector is kWarp vectors further.
template <typename Word>
struct GatherTile {
  using Vector = cuda::Vector<Word>;
  static constexpr int kItems = maximum<int>(Vector::kItems, sizeof(Word) == 8 ? 4 : 8);
  static constexpr int kVectors = kItems / Vector::kItems;
  static constexpr int kTile = kRankThreads * kItems;

  const Word* part;  // the block's part of the row
  int count;
  int warp, lane;

  __device__ __forceinline__ int place(int tile, int i) const {
    const int first = (warp * kWarp * kVectors + lane) * Vector::kItems;
    return tile + first + i / Vector::kItems * kWarp * Vector::kItems + i % Vector::kItems;
  }

  __device__ __forceinline__ void load(int tile, Word (&items)[kItems]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = place(tile, v * Vector::kItems);
      if (at >= 0 && at + Vector::kItems <= count) {
        const Vector vector = Vector::load(part + at, 0);
#pragma unroll
        for (int i = 0; i < Vector::kItems; ++i) items[v * Vector::kItems + i] = vector.items[i];
      } else {
#pragma unroll
        for (int i = 0; i < Vector::kItems; ++i) {
          items[v * Vector::kItems + i] = at + i >= 0 && at + i < count ? part[at + i] : Word{0};
        }
      }
    }
  }

  __device__ __forceinline__ unsigned inside(int tile) const {
    unsigned inside = (1u << kItems) - 1;
    if (tile < 0 || tile + kTile > count) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (place(tile, i) < 0 || place(tile, i) >= count) inside &= ~(1u << i);
      }
    }
    return inside;
  }
};

// Collected items are staged in shared memory.
template <typename Word>
struct WarpStage {
  static constexpr int kItems = GatherTile<Word>::kItems;
  static constexpr int kRoom = 2 * kWarp * kItems;
  Word* staged;
  Word* gathered;  // the collected items of the row, of which there is room for `room`
  int64_t room;
  RankIntervals& found;
  int lane;
  int fill = 0;  // how many items are staged

  __device__ __forceinline__ void flush() {
    __syncwarp();
    unsigned long long to = 0;
    if (lane == 0) to = atomicAdd(&found.gathered, static_cast<unsigned long long>(fill));
    to = __shfl_sync(~0u, to, 0);
    for (int i = lane; i < fill; i += kWarp) {
      if (static_cast<int64_t>(to) + i < room) gathered[to + i] = staged[i];
    }
    __syncwarp();
    fill = 0;
  }

  // Stages the keys in the bitmap `taken`: this lane has `own` of them, the lanes up to and including it `up_to`, and
  // the warp `all`.
  __device__ __forceinline__ void add(const Word (&keys)[kItems], unsigned taken, int own, int up_to, int all) {
    if (fill + all > kRoom) flush();
    int to = fill + up_to - own;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (taken >> i & 1) staged[to++] = keys[i];
    }
    fill += all;
  }
};

struct IntervalCounts {
  unsigned below, at_low, between, at_high;
};

// `reached` is a bitmap of the keys that may lie in interval j. Those at its ends are counted, those between its ends
// collected.
template <typename Order, typename Word = typename Order::Word, int kItems>
__device__ __forceinline__ void collect(const Order& order, const Word (&keys)[kItems], unsigned reached, int j,
                                        const Word* lows, const Word* highs, IntervalCounts* counts,
                                        WarpStage<Word>& stage) {
  const Word low = lows[j], high = highs[j];
  unsigned taken = 0;
  int at_low = 0, at_high = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!(reached >> i & 1)) continue;
    const Word rank = order.rank(order.encode(keys[i]));
    if (low < rank && rank < high) {
      taken |= 1u << i;
    } else {
      at_low += rank == low;
      at_high += rank == high && rank != low;
    }
  }
  const int own = __popc(taken);
  const int up_to = sum_up_to(own);
  const int all = shuffle(up_to, kWarp - 1);
  if (__any_sync(~0u, at_low + at_high > 0)) {
    const int at_ends = fold_warp(at_low | at_high << 16, [](int x, int y) { return x + y; });
    if (stage.lane == 0) {
      atomicAdd(&counts[j].at_low, static_cast<unsigned>(at_ends & 0xffff));
      atomicAdd(&counts[j].at_high, static_cast<unsigned>(at_ends >> 16));
    }
  }
  if (all == 0) return;
  if (stage.lane == 0) atomicAdd(&counts[j].between, static_cast<unsigned>(all));
  stage.add(keys, taken, own, up_to, all);
}

__device__ __forceinline__ void add_counts(const IntervalCounts* counts, RankIntervals& found) {
  const auto add = [](uint64_t& to, unsigned count) {
    if (count > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(count));
  };
  RankIntervals::Interval& interval = found.intervals[threadIdx.x];
  add(interval.below, counts[threadIdx.x].below);
  add(interval.at_low, counts[threadIdx.x].at_low);
  add(interval.between, counts[threadIdx.x].between);
  add(interval.at_high, counts[threadIdx.x].at_high);
}

// One block per part of a row.
template <typename Order>
__global__ void __launch_bounds__(kRankThreads, 2) gather_between(const __grid_constant__ RanksTask<Order> task) {
  using Word = typename Order::Word;
  using Tile = GatherTile<Word>;
  __shared__ Word staged[kRankWarps][WarpStage<Word>::kRoom];
  __shared__ unsigned below[kMaxIntervals - 1][kRankThreads];  // each thread's count for each interval but the first
  __shared__ IntervalCounts counts[kMaxIntervals];
  __shared__ Interval<Order> intervals[kMaxIntervals];
  __shared__ Word lows[kMaxIntervals], highs[kMaxIntervals];
  const OrderStatisticsOperands& operands = task.operands;
  const int64_t row = blockIdx.x / task.parts;
  RankIntervals& found = task.scratch.intervals[row];
  const int interval_count = found.count;
  if (interval_count == 0) return;
  const int64_t live = operands.live(row);
  const int64_t row_begin = (blockIdx.x - row * task.parts) * task.part;
  const int count = static_cast<int>(clamp<int64_t>(live - row_begin, 0, task.part));
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (threadIdx.x < interval_count) {
    const RankIntervals::Interval& interval = found.intervals[threadIdx.x];
    counts[threadIdx.x] = {};
    lows[threadIdx.x] = static_cast<Word>(interval.low);
    highs[threadIdx.x] = static_cast<Word>(interval.high);
    intervals[threadIdx.x].set(task.order, lows[threadIdx.x], highs[threadIdx.x]);
  }
  __syncthreads();

  const Word* const items = static_cast<const Word*>(operands.x) + row * operands.x_stride + row_begin;
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(items) % sizeof(typename Tile::Vector) / sizeof(Word));
  const int64_t room = operands.between_room();
  WarpStage<Word> stage{staged[warp], static_cast<Word*>(task.scratch.between) + row * room, room, found, lane};
  const Tile tiles{items, count, warp, lane};
  Word next[Tile::kItems];
  for (int j = 1; j < interval_count; ++j) below[j - 1][threadIdx.x] = 0;
  unsigned below_first = 0;
  tiles.load(-lead, next);
  for (int tile = -lead; tile < count; tile += Tile::kTile) {
    Word keys[Tile::kItems];
#pragma unroll
    for (int i = 0; i < Tile::kItems; ++i) keys[i] = next[i];
    if (tile + Tile::kTile < count) tiles.load(tile + Tile::kTile, next);
    const unsigned inside = tiles.inside(tile);
    for (int j = 0; j < interval_count; ++j) {
      const Interval<Order> interval = intervals[j];
      unsigned lower = 0, reached = 0;
#pragma unroll
      for (int i = 0; i < Tile::kItems; ++i) {
        lower |= interval.is_above(task.order, keys[i]) ? 1u << i : 0;
        reached |= interval.reaches(task.order, keys[i]) ? 1u << i : 0;
      }
      lower &= inside;
      if (j == 0) {
        below_first += __popc(lower);
      } else {
        below[j - 1][threadIdx.x] += __popc(lower);
      }
      reached &= inside & ~lower;
      if (!__any_sync(~0u, reached != 0)) continue;
      collect(task.order, keys, reached, j, lows, highs, counts, stage);
    }
  }
  if (stage.fill > 0) stage.flush();
  for (int j = 0; j < interval_count; ++j) {
    const unsigned own = j == 0 ? below_first : below[j - 1][threadIdx.x];
    const unsigned warp_below = fold_warp(own, [](unsigned x, unsigned y) { return x + y; });
    if (lane == 0) atomicAdd(&counts[j].below, warp_below);
  }
  __syncthreads();
  if (threadIdx.x < interval_count) add_counts(counts, found);
  if (is_last_block(task.scratch.counted + row, task.parts) && threadIdx.x == 0) place_ranks(task, row);
}

}  // namespace mgpu::cuda::ranking
