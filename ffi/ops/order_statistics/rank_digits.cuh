// One pass of a search for the items at some ranks, which are positions in the sorted order of a sequence. Keys are
// read as words that compare as the keys do (Order::rank). Blocks count the next digit of the words that begin with the
// known digits, and the last block to finish finds one more digit of each sought item.
#pragma once

#include "algorithm/key_order.h"
#include "cuda/block/last_block.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/shared_counters.cuh"

namespace mgpu::cuda::ranking {

template <typename Order>
struct SoughtItems {
  using Word = typename Order::Word;
  Order order;
  const Word* keys;
  int rank_count;
  uint64_t* prefixes;  // [rank_count]: the known digits of each rank's item
  int64_t* befores;    // [rank_count]: how many items have smaller leading digits
  uint64_t* counts;    // [rank_count, kDigits]: the numbers of items with each next digit, zero between passes
};
struct DigitPass {
  int shift;  // the lowest bit of the digit
  int bits;
  bool is_first;
};

// Ranks whose items share their known digits also share the counts of the first of them.
template <typename Word, int kMaxRanks>
struct SharedRanks {
  Word prefixes[kMaxRanks];
  int first[kMaxRanks];  // the first rank with each prefix
  int distinct;
};

template <typename Order, int kMaxRanks, int kDigits, int kThreads>
class RankDigits {
  using Word = typename Order::Word;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kEach = kDigits / kThreads;
  static constexpr int kPitch = kDigits + 1;  // the step from copy to copy: a digit's counters are in different banks

 public:
  static constexpr int64_t kCounterBytes = sizeof(unsigned) * kMaxRanks * kPitch;  // dynamic shared memory

  __device__ static void count(const SoughtItems<Order>& sought, DigitPass pass, int64_t begin, int64_t end) {
    constexpr int kInFlight = 8;
    extern __shared__ uint4 shared_memory[];
    unsigned* const counters = reinterpret_cast<unsigned*>(shared_memory);
    __shared__ SharedRanks<Word, kMaxRanks> shared;
    const int above = pass.shift + pass.bits;  // the lowest bit of the known digits
    if (threadIdx.x == 0) {
      int distinct = 0;
      for (int i = 0; i < sought.rank_count; ++i) {
        const Word prefix = static_cast<Word>(sought.prefixes[i]);
        bool is_new = true;
        for (int j = 0; j < distinct; ++j) is_new &= shared.prefixes[j] != prefix;
        if (is_new) {
          shared.prefixes[distinct] = prefix;
          shared.first[distinct++] = i;
        }
      }
      shared.distinct = distinct;
    }
    for (int i = threadIdx.x; i < kMaxRanks * kPitch; i += kThreads) counters[i] = 0;
    __syncthreads();

    const int distinct = shared.distinct;
    const int copies = kMaxRanks / distinct;
    const SharedCounters own(counters + threadIdx.x % copies * kPitch);
    const int stride = copies * kPitch;
    const unsigned digits = (1u << pass.bits) - 1;
    const auto count_one = [&](Word key) {
      const Word rank = sought.order.rank(sought.order.encode(key));
      const int digit = static_cast<int>(static_cast<unsigned>(rank >> pass.shift) & digits);
      if (pass.is_first) {
        own.add_one(digit);
      } else {
        const Word known = static_cast<Word>(rank >> above);
        for (int i = 0; i < distinct; ++i) {
          if (known == shared.prefixes[i]) own.add_one(i * stride + digit);
        }
      }
    };
    int64_t at = begin + threadIdx.x;
    for (; at + (kInFlight - 1) * kThreads < end; at += kInFlight * kThreads) {
      Word key[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) key[i] = sought.keys[at + i * kThreads];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) count_one(key[i]);
    }
    for (; at < end; at += kThreads) count_one(sought.keys[at]);
    __syncthreads();

    for (int i = 0; i < distinct; ++i) {
      auto* const counts = reinterpret_cast<unsigned long long*>(sought.counts) + int64_t{shared.first[i]} * kDigits;
      for (int digit = threadIdx.x; digit < kDigits; digit += kThreads) {
        unsigned sum = 0;
        for (int copy = 0; copy < copies; ++copy) sum += counters[i * stride + copy * kPitch + digit];
        if (sum > 0) atomicAdd(counts + digit, static_cast<unsigned long long>(sum));
      }
    }
  }

  // Finds the next digit of the item at each sought rank, rank(i), from the counts, and clears the counts. In the last
  // pass, calls put(i, word), where `word` is all digits of that item.
  template <typename RankOf, typename Put>
  __device__ static void find(const SoughtItems<Order>& sought, DigitPass pass, RankOf rank, Put put) {
    __shared__ int64_t warp_sums[kWarps];
    for (int i = sought.rank_count - 1; i >= 0; --i) {  // shared counts are cleared last
      const uint64_t prefix = sought.prefixes[i];
      int first = i;
      for (int j = i - 1; j >= 0; --j) first = sought.prefixes[j] == prefix ? j : first;
      uint64_t* const counts = sought.counts + int64_t{first} * kDigits + threadIdx.x * kEach;
      int64_t own[kEach], sum = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        own[k] = static_cast<int64_t>(__ldcg(counts + k));
        sum += own[k];
      }
      const int64_t left = rank(i) - sought.befores[i];
      int64_t before = sum_block<kWarps>(warp_sums, sum).before;  // its barrier comes after all reads above
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (before <= left && left < before + own[k]) {
          const int digit = static_cast<int>(threadIdx.x) * kEach + k;
          const uint64_t known = prefix << pass.bits | static_cast<uint64_t>(digit);
          sought.prefixes[i] = known;
          sought.befores[i] += before;
          if (pass.shift == 0) put(i, static_cast<Word>(known));
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
};

}  // namespace mgpu::cuda::ranking
