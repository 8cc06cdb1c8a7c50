// A bitonic sort (Batcher, "Sorting Networks and Their Applications", 1968) of a few thousand entries by a block, in
// registers. It is not stable, so entries hold their positions.
#pragma once

#include "cuda/block/shuffle.cuh"
#include "cuda/ptx.cuh"

namespace mgpu::cuda {

// A rank, which is a word that compares as the entry's key does, and a number that orders entries of equal rank.
template <typename Rank>
class SortedEntry {
 public:
  SortedEntry() = default;
  __device__ __forceinline__ SortedEntry(Rank rank, uint32_t number) : rank_(rank), number_(number) {}
  __device__ __forceinline__ Rank rank() const { return rank_; }
  __device__ __forceinline__ uint32_t number() const { return static_cast<uint32_t>(number_); }
  __device__ __forceinline__ bool operator<(const SortedEntry& other) const {
    return rank_ < other.rank_ || (rank_ == other.rank_ && number_ < other.number_);
  }

 private:
  Rank rank_;
  Rank number_;  // as wide as a rank, so that there is no padding
};

// An entry with a rank of up to 32 bits is one word.
template <typename Rank>
  requires(sizeof(Rank) <= 4)
class SortedEntry<Rank> {
 public:
  SortedEntry() = default;
  __device__ __forceinline__ SortedEntry(Rank rank, uint32_t number) : word_(uint64_t{rank} << 32 | number) {}
  __device__ __forceinline__ Rank rank() const { return static_cast<Rank>(word_ >> 32); }
  __device__ __forceinline__ uint32_t number() const { return static_cast<uint32_t>(word_); }
  __device__ __forceinline__ bool operator<(const SortedEntry& other) const { return word_ < other.word_; }

 private:
  uint64_t word_;
};

// Sorts the entries of `size` slots, a power of two from kItems to kThreads * kItems. Thread t has the slots from t *
// kItems on. Slots without an entry must hold one that comes after all others. `shared` has room for kThreads * kItems
// entries, and may be overwritten after a barrier of the caller. Contains barriers if the entries span several warps.
template <int kThreads, int kItems, typename Entry>
__device__ __forceinline__ void sort_entries(Entry (&entries)[kItems], Entry* shared, int size) {
  static_assert((kItems & (kItems - 1)) == 0);
  constexpr int kWarpEntries = kItems * kWarp;
  const int thread = static_cast<int>(threadIdx.x);
  const int first = thread * kItems;
  const bool takes_part = thread / kWarp * kWarpEntries < size;
  const auto keeps_less = [](int slot, int run, int distance) {
    return ((slot & run) == 0) == ((slot & distance) == 0);
  };
  const auto exchange = [&](const Entry& own, const Entry& other, bool keeps) {
    return (other < own) == keeps ? other : own;
  };
#pragma unroll 1
  for (int run = 2; run <= size; run *= 2) {
    int distance = run / 2;
#pragma unroll 1
    for (; distance >= kWarpEntries; distance /= 2) {
      if (takes_part) {
#pragma unroll
        for (int k = 0; k < kItems; ++k) shared[k * kThreads + thread] = entries[k];
      }
      __syncthreads();
      if (takes_part) {
        const int other = thread ^ (distance / kItems);
#pragma unroll
        for (int k = 0; k < kItems; ++k) {
          entries[k] = exchange(entries[k], shared[k * kThreads + other], keeps_less(first + k, run, distance));
        }
      }
      __syncthreads();
    }
    if (!takes_part) continue;
#pragma unroll 1
    for (; distance >= kItems; distance /= 2) {
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const Entry other =
            shuffle_words(entries[k], [=](unsigned word) { return __shfl_xor_sync(~0u, word, distance / kItems); });
        entries[k] = exchange(entries[k], other, keeps_less(first + k, run, distance));
      }
    }
#pragma unroll
    for (int near = kItems / 2; near > 0; near /= 2) {
      if (near > distance) continue;
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if ((k & near) != 0) continue;
        const bool swaps = (entries[k + near] < entries[k]) == keeps_less(first + k, run, near);
        const Entry low = entries[k], high = entries[k + near];
        entries[k] = swaps ? high : low;
        entries[k + near] = swaps ? low : high;
      }
    }
  }
}

}  // namespace mgpu::cuda
