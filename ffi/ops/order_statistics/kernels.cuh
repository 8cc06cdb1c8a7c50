// The kernel of order_statistics makes one pass over the keys for each digit of their ranks, the most significant
// first. A pass counts the next digit of the keys that begin with the digits known so far, and so finds one more digit
// of each sought item.
#pragma once

#include "cuda/block/scan.cuh"
#include "cuda/block/shared_counters.cuh"
#include "ops/order_statistics/task.cuh"

namespace mgpu::cuda::ranking {

constexpr int kRankCounters = kRankDigits + 1;  // per copy, so that a digit's counters are in different banks

// The items that the passes go over: a whole row, or the items that were collected from its intervals.
template <typename Order>
struct RankSource {
  using Word = typename Order::Word;
  const Word* keys;
  int64_t live;
  int64_t part;          // items per block
  const int64_t* ranks;  // among the collected items; null for a whole row

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
  // Rank number i among these items, or a negative number if its item is known already.
  __device__ int64_t rank(const RanksTask<Order>& task, int64_t row, int i) const {
    return ranks ? ranks[i] : task.operands.rank(row, i);
  }
};

// Sought ranks whose items begin with the same digits share the counts of the first of these ranks.
template <typename Word>
struct SharedRanks {
  Word prefixes[kMaxRanks];  // the distinct prefixes
  int first[kMaxRanks];      // the first rank with each prefix
  int distinct;
};

// Finds the next digit of each rank from a row's counts, and clears them. All threads of one block call it.
template <typename Order>
__device__ void find_digits(const RanksTask<Order>& task, int64_t row) {
  using Word = typename Order::Word;
  constexpr int kEach = kRankDigits / kRankThreads;
  __shared__ int64_t warp_sums[kRankWarps];
  const OrderStatisticsOperands& operands = task.operands;
  const RankSource<Order> source(task, row);
  const int ranks = static_cast<int>(operands.rank_count);
  uint64_t* const prefixes = task.scratch.prefixes + row * ranks;
  int64_t* const befores = task.scratch.before + row * ranks;
  const bool is_last = task.shift == 0;
  for (int i = ranks - 1; i >= 0; --i) {  // shared counts are cleared last
    const uint64_t prefix = prefixes[i];
    int first = i;
    for (int j = i - 1; j >= 0; --j) first = prefixes[j] == prefix ? j : first;
    uint64_t* const counts = task.scratch.counts + (row * ranks + first) * kRankDigits + threadIdx.x * kEach;
    int64_t own[kEach], sum = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      own[k] = static_cast<int64_t>(__ldcg(counts + k));
      sum += own[k];
    }
    const int64_t left = source.rank(task, row, i) - befores[i];
    int64_t before = sum_block<kRankWarps>(warp_sums, sum).before;  // its barrier comes after all reads above
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (before <= left && left < before + own[k]) {
        const int digit = static_cast<int>(threadIdx.x) * kEach + k;
        const uint64_t known = prefix << task.digit_bits | static_cast<uint64_t>(digit);
        prefixes[i] = known;
        befores[i] += before;
        if (is_last) {
          static_cast<Word*>(operands.values)[row * ranks + i] = key_of_rank(task.order, static_cast<Word>(known));
        }
      }
      before += own[k];
    }
    if (first == i) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) counts[k] = 0;
    }
    __syncthreads();
  }
}

// Counts the next digit of the keys [begin, end). All threads of one block call it.
template <typename Order>
__device__ void count_digits(const RanksTask<Order>& task, int64_t row, const typename Order::Word* keys, int64_t begin,
                             int64_t end) {
  using Word = typename Order::Word;
  constexpr int kInFlight = 8;  // loads before the first use
  extern __shared__ uint4 shared_memory[];
  unsigned* const counters = reinterpret_cast<unsigned*>(shared_memory);
  __shared__ SharedRanks<Word> shared;
  const int ranks = static_cast<int>(task.operands.rank_count);
  const int above = task.shift + task.digit_bits;  // the place of the known digits
  if (threadIdx.x == 0) {
    int distinct = 0;
    for (int i = 0; i < ranks; ++i) {
      const Word prefix = static_cast<Word>(task.scratch.prefixes[row * ranks + i]);
      bool is_new = true;
      for (int j = 0; j < distinct; ++j) is_new &= shared.prefixes[j] != prefix;
      if (is_new) {
        shared.prefixes[distinct] = prefix;
        shared.first[distinct++] = i;
      }
    }
    shared.distinct = distinct;
  }
  for (int i = threadIdx.x; i < kMaxRanks * kRankCounters; i += kRankThreads) counters[i] = 0;
  __syncthreads();

  const int distinct = shared.distinct;
  const int copies = kMaxRanks / distinct;
  const SharedCounters own(counters + threadIdx.x % copies * kRankCounters);
  const int stride = copies * kRankCounters;
  const unsigned digits = (1u << task.digit_bits) - 1;
  const auto count = [&](Word key) {
    const Word rank = task.order.rank(task.order.encode(key));
    const int digit = static_cast<int>(static_cast<unsigned>(rank >> task.shift) & digits);
    if (task.is_first) {
      own.add_one(digit);
    } else {
      const Word known = static_cast<Word>(rank >> above);
      for (int i = 0; i < distinct; ++i) {
        if (known == shared.prefixes[i]) own.add_one(i * stride + digit);
      }
    }
  };
  int64_t at = begin + threadIdx.x;
  for (; at + (kInFlight - 1) * kRankThreads < end; at += kInFlight * kRankThreads) {
    Word key[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) key[i] = keys[at + i * kRankThreads];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) count(key[i]);
  }
  for (; at < end; at += kRankThreads) count(keys[at]);
  __syncthreads();

  for (int i = 0; i < distinct; ++i) {
    auto* const counts =
        reinterpret_cast<unsigned long long*>(task.scratch.counts) + (row * ranks + shared.first[i]) * kRankDigits;
    for (int digit = threadIdx.x; digit < kRankDigits; digit += kRankThreads) {
      unsigned sum = 0;
      for (int copy = 0; copy < copies; ++copy) sum += counters[i * stride + copy * kRankCounters + digit];
      if (sum > 0) atomicAdd(counts + digit, static_cast<unsigned long long>(sum));
    }
  }
}

// One block per part of a row. The last block of a row to finish finds the digits.
template <typename Order>
__global__ void __launch_bounds__(kRankThreads) count_rank_digits(const __grid_constant__ RanksTask<Order> task) {
  using Word = typename Order::Word;
  const OrderStatisticsOperands& operands = task.operands;
  const int64_t row = blockIdx.x / task.parts;
  const RankSource<Order> source(task, row);
  const int64_t begin = (blockIdx.x - row * task.parts) * source.part;
  const int64_t end = minimum(begin + source.part, source.live);
  if (source.live == 0) {
    if (task.shift == 0 && !source.ranks && blockIdx.x == row * task.parts) {
      const int ranks = static_cast<int>(operands.rank_count);
      for (int i = threadIdx.x; i < ranks; i += kRankThreads) static_cast<Word*>(operands.values)[row * ranks + i] = 0;
    }
    return;
  }
  if (begin < end) count_digits(task, row, source.keys, begin, end);
  if (is_last_of_row(task, row)) find_digits(task, row);
}

}  // namespace mgpu::cuda::ranking
