// The call of order_statistics as its kernels see it: the items that stand at a few ranks of each row's sorted order.
#pragma once

#include "algorithm/index_vector.h"
#include "cuda/policy.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// The intervals of a row's order in which its ranks are looked for: disjoint, in order. Their ends are items' ranks, as
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

// Operands: x [.., n], ranks [.., m], count [.., 1] or absent. Results: values [.., m]. A rank beyond the live items is
// that of the last one; of no items it is 0. Of items that are equal it may be another one's bits: a zero is +0.
struct OrderStatisticsOperands {
  DType key_type;
  int64_t rows;
  int64_t length;
  int64_t rank_count;
  IndexVector ranks;
  int64_t ranks_stride;  // from row to row
  LiveCounts counts;
  const void* x;
  int64_t x_stride;  // from row to row
  void* values;

  explicit OrderStatisticsOperands(const Call& call);

  MGPU_HOST_DEVICE int64_t live(int64_t row) const { return counts(row, length); }
  // Where rank number i stands in the order of a row that has items.
  MGPU_HOST_DEVICE int64_t rank(int64_t row, int64_t i) const {
    return clamp<int64_t>(ranks[row * ranks_stride + i], 0, live(row) - 1);
  }

  // Whether the CUDA kernels look for the ranks between two items of a sample first.
  MGPU_HOST_DEVICE bool takes_sample() const {
    return rank_count <= kMostIntervals && length >= kRankSampledRow && rows * length >= kRankSampledItems;
  }
  // Items of a row between such, for which there is room.
  MGPU_HOST_DEVICE int64_t between_room() const { return takes_sample() ? length / 8 : 0; }

  // Scratch memory of the CUDA kernels, zero before the first but for the items between.
  struct Scratch {
    uint64_t* prefixes;        // [rows, rank_count]: the digits that are known of each rank's item
    int64_t* before;           // [rows, rank_count]: how many items have lesser ones
    uint64_t* counts;          // [rows, rank_count, kRankDigits]: of items by their next digit
    unsigned* counted;         // [rows]: blocks that are done
    RankIntervals* intervals;  // [rows], if it takes a sample
    int64_t bytes;             // of all of it, which begins with the prefixes
    void* between;             // [rows, between_room()]
  };
  Scratch layout(Workspace& workspace) const;
};

// The key of a rank's word: +0 where it is zero.
template <typename Order>
MGPU_HOST_DEVICE typename Order::Word key_of_rank(const Order& order, typename Order::Word rank) {
  using Word = typename Order::Word;
  const Word next = static_cast<Word>(rank + 1);
  return order.decode(next != 0 && order.rank(next) == rank ? next : rank);
}

}  // namespace mgpu
