#pragma once

#include "ops/order_statistics/operands.h"

namespace mgpu {

// The most ranks whose counters fit a block's shared memory on every device.
constexpr int kMaxRanks = 7;
constexpr int64_t kRankPart = 1 << 14;  // a row has at most ceil_div(length, kRankPart) blocks
// A row may be sampled (sampled_intervals.cuh) if there are
// at most kMaxIntervals ranks, and if rows have at least
// kRankSampledRow items each and kRankSampledItems together.
constexpr int kMaxIntervals = 3;
constexpr int64_t kRankSampledRow = 1 << 18;
constexpr int64_t kRankSampledItems = 1 << 24;
constexpr int kRankSampleBytes = 32 << 10;
constexpr int64_t kRankGatheredPart = 1 << 15;  // the fewest collected items per block

// Disjoint intervals in ascending order, which should contain the sought items. The ends are words that compare as the
// keys do (Order::rank).
struct RankIntervals {
  struct Interval {
    uint64_t low, high;
    uint64_t below, at_low, between, at_high;  // numbers of items below the interval, at its ends, and between these
  };
  Interval intervals[kMaxIntervals];
  int count;       // 0 if there are none
  bool holds_all;  // whether each rank's item is known, or is among the collected items
  int interval_of[kMaxIntervals];
  int64_t ranks[kMaxIntervals];  // each rank among the collected items, if holds_all; -1 if the item is known
  unsigned long long gathered;   // the number of collected items, which are between the ends of an interval
};

MGPU_HOST_DEVICE bool OrderStatisticsOperands::takes_sample() const {
  return rank_count <= kMaxIntervals && length >= kRankSampledRow && rows * length >= kRankSampledItems;
}
MGPU_HOST_DEVICE int64_t OrderStatisticsOperands::between_room() const { return takes_sample() ? length / 8 : 0; }

// All arrays but `between` are zeroed before the first kernel.
struct OrderStatisticsOperands::Scratch {
  uint64_t* prefixes;        // [rows, rank_count]: the known digits of each rank's item
  int64_t* before;           // [rows, rank_count]: how many items have smaller leading digits
  uint64_t* counts;          // [rows, rank_count, kRankDigits]: the numbers of items with each next digit
  unsigned* counted;         // [rows]: blocks that are done
  RankIntervals* intervals;  // [rows], if takes_sample()
  int64_t bytes;             // the size of the zeroed memory, which begins with the prefixes
  void* between;             // [rows, between_room()]: the collected items
};

}  // namespace mgpu
