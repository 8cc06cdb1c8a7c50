// Finds the items at the sought ranks, which are positions
// in sorted order. There is a pass for each digit of the
// keys' words (Order::rank), the most significant first.
#pragma once

#include "ops/order_statistics/task.cuh"

namespace mgpu::cuda::ranking {

template <typename Order>
using RowDigits = RankDigits<Order, kMaxRanks, kRankDigits, kRankThreads>;

// The passes go over all items of a row, or over those that sampled_intervals.cuh collected.
template <typename Order>
struct RankSource {
  using Word = typename Order::Word;
  const Word* keys;
  int64_t live;
  int64_t part;          // items per block
  const int64_t* ranks;  // the sought ranks among the collected items; null for a whole row

  __device__ RankSource(const RanksTask<Order>& task, int64_t row) {
    const OrderStatisticsOperands& operands = task.operands;
    if (operands.takes_sample() && task.scratch.intervals[row].holds_all) {
      const RankIntervals& intervals = task.scratch.intervals[row];
      keys = static_cast<const Word*>(task.scratch.between) + row * operands.between_room();
      live = static_cast<int64_t>(intervals.gathered);
      part = maximum(ceil_div(live, task.parts), kRankGatheredPart);
      ranks = intervals.ranks;
    } else {
      keys = static_cast<const Word*>(operands.x) + row * operands.x_stride;
      live = operands.live(row);
      part = task.part;
      ranks = nullptr;
    }
  }
  // The rank is negative if its item is known already.
  __device__ int64_t rank(const RanksTask<Order>& task, int64_t row, int i) const {
    return ranks ? ranks[i] : task.operands.rank(row, i);
  }
};

// The last block of a row to finish finds the digits.
template <typename Order>
__global__ void __launch_bounds__(kRankThreads) count_rank_digits(const __grid_constant__ RanksTask<Order> task) {
  using Word = typename Order::Word;
  const OrderStatisticsOperands& operands = task.operands;
  const int64_t row = blockIdx.x / task.parts;
  const RankSource<Order> source(task, row);
  const int64_t begin = (blockIdx.x - row * task.parts) * source.part;
  const int64_t end = minimum(begin + source.part, source.live);
  const int ranks = static_cast<int>(operands.rank_count);
  Word* const values = static_cast<Word*>(operands.values) + row * ranks;
  if (source.live == 0) {
    if (task.pass.shift == 0 && !source.ranks && blockIdx.x == row * task.parts) {
      for (int i = threadIdx.x; i < ranks; i += kRankThreads) values[i] = 0;
    }
    return;
  }
  const int64_t first = row * ranks;
  const SoughtItems<Order> sought{task.order,
                                  source.keys,
                                  ranks,
                                  task.scratch.prefixes + first,
                                  task.scratch.before + first,
                                  task.scratch.counts + first * kRankDigits};
  if (begin < end) RowDigits<Order>::count(sought, task.pass, begin, end);
  if (!is_last_block(task.scratch.counted + row, task.parts)) return;
  RowDigits<Order>::find(
      sought, task.pass, [&](int i) { return source.rank(task, row, i); },
      [&](int i, Word rank) { values[i] = key_of_rank(task.order, rank); });
}

}  // namespace mgpu::cuda::ranking
