// How CUDA finds the items at ranks: samples and scratch memory.
#pragma once

#include "ops/order_statistics/operands.h"

namespace mgpu {

// The most ranks whose counters fit every device at once.
constexpr int kMostRanks = 7;
constexpr int64_t kRankPart = 1 << 14;  // items of a block, or more
// The ranks of one quantile in long rows: its two neighbours and the last one. A sample of the row gives an interval
// for each. From this many items on, of a row and of all rows, that is faster.
constexpr int kMostIntervals = 3;
constexpr int64_t kRankSampledRow = 1 << 18;
constexpr int64_t kRankSampledItems = 1 << 24;
constexpr int kRankSampleBytes = 32 << 10;
constexpr int64_t kRankGatheredPart = 1 << 15;  // of the items in the intervals: a block adds up as many counters

// The intervals of a row's order in which its ranks are sought: disjoint, in order. Their ends are items' ranks, as
// words.
struct RankIntervals {
  struct Interval {
    uint64_t low, high;                        // the ends
    uint64_t below, at_low, between, at_high;  // items below it, at its ends, and between these
  };
  Interval intervals[kMostIntervals];
  int count;                        // 0: the row has not been sampled
  bool holds_all;                   // the ranks: their items are among those between, or known
  int interval_of[kMostIntervals];  // of each rank
  int64_t ranks[kMostIntervals];    // in the order of the items between, if it holds all; -1: known
  unsigned long long gathered;      // items between, of all intervals
};

MGPU_HOST_DEVICE bool OrderStatisticsOperands::takes_sample() const {
  return rank_count <= kMostIntervals && length >= kRankSampledRow && rows * length >= kRankSampledItems;
}
MGPU_HOST_DEVICE int64_t OrderStatisticsOperands::between_room() const { return takes_sample() ? length / 8 : 0; }

// Scratch memory of the CUDA kernels, zeroed before the first one except for the items between.
struct OrderStatisticsOperands::Scratch {
  uint64_t* prefixes;        // [rows, rank_count]: the digits that are known of each rank's item
  int64_t* before;           // [rows, rank_count]: how many items have lesser ones
  uint64_t* counts;          // [rows, rank_count, kRankDigits]: of items by their next digit
  unsigned* counted;         // [rows]: blocks that are done
  RankIntervals* intervals;  // [rows], if it takes a sample
  int64_t bytes;             // of all of it, which begins with the prefixes
  void* between;             // [rows, between_room()]
};

}  // namespace mgpu
