// A radix select by a block: finds the item that has a given rank, its place in sorted order, by counting the items'
// digits, the most significant first.
#pragma once

#include "algorithm/digits.h"
#include "cuda/block/scan.cuh"

namespace mgpu::cuda {

// The leading digits of an item's word. `matching` items have words that begin with these digits, and the item has rank
// `rank` among these items, counted from 1.
template <typename Word>
struct LeadingDigits {
  Word prefix;
  int shift;
  int rank, matching;
  __device__ Word lowest() const { return prefix; }
  __device__ Word highest() const { return static_cast<Word>(prefix | static_cast<Word>((Word{1} << shift) - 1)); }
};

template <int kThreads>
class SelectDigits {
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kCopies = 8;              // copies of each counter, so that lanes seldom add to the same one
  static constexpr int kCounters = kDigits + 1;  // per copy; the spare one puts a digit's counters in different banks
  static_assert(kThreads >= kDigits);

 public:
  struct Shared {
    unsigned counters[kCounters * kCopies];
    int warp_sums[2][kWarps];
    int digit, before, matching;
  };

  // A barrier must follow before the first use.
  __device__ explicit SelectDigits(Shared& shared) : shared_(shared) {
    for (int i = threadIdx.x; i < kCounters * kCopies; i += kThreads) shared.counters[i] = 0;
  }

  // Finds the digits of the item with this rank, counted from 1, among word_of(0), …, word_of(count - 1), without those
  // for which among(i) is false. It finds all digits, or stops as soon as suffice(digits) is true. All threads of the
  // block call it. Contains barriers, one of them after the last call of word_of.
  template <typename Word, typename WordOf, typename Among, typename Suffice>
  __device__ LeadingDigits<Word> operator()(int count, int rank, WordOf word_of, Among among, Suffice suffice) {
    LeadingDigits<Word> known{0, 8 * sizeof(Word), rank, count};
    do {
      known.shift -= kDigitBits;
      for (int i = threadIdx.x; i < count; i += kThreads) {
        const Word word = word_of(i);
        if (among(i) && static_cast<Word>(static_cast<Word>(word ^ known.prefix) >> known.shift) < kDigits) {
          const int digit = static_cast<int>(word >> known.shift) & (kDigits - 1);
          atomicAdd(&shared_.counters[threadIdx.x % kCopies * kCounters + digit], 1u);
        }
      }
      find_digit(known.rank);
      known.prefix = static_cast<Word>(known.prefix | static_cast<Word>(shared_.digit) << known.shift);
      known.rank -= shared_.before;
      known.matching = shared_.matching;
    } while (known.shift > 0 && !suffice(known));
    return known;
  }

  // Contains one barrier. Two
  // sets of sums alternate.
  __device__ Prefix<int> before_warp(int warp_sum) {
    turn_ ^= 1;
    return scan_warps<kWarps>(shared_.warp_sums[turn_], warp_sum, 0, [](int x, int y) { return x + y; });
  }

 private:
  __device__ void find_digit(int rank) {
    __syncthreads();
    int matching = 0;
    if (threadIdx.x < kDigits) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        unsigned& counter = shared_.counters[i * kCounters + threadIdx.x];
        matching += static_cast<int>(counter);
        counter = 0;
      }
    }
    turn_ ^= 1;
    const int before = sum_block<kWarps>(shared_.warp_sums[turn_], matching).before;
    if (before < rank && rank <= before + matching) {
      shared_.digit = threadIdx.x;
      shared_.before = before;
      shared_.matching = matching;
    }
    __syncthreads();
  }

  Shared& shared_;
  int turn_ = 0;
};

}  // namespace mgpu::cuda
