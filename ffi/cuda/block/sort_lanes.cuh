// Sorts of values in the registers of lanes.
#pragma once

#include "algorithm/serial_merge.h"
#include "cuda/block/shuffle.cuh"

namespace mgpu::cuda {

// Sorts the values of each group of kLanes lanes, in ascending order of lanes.
template <int kLanes, typename Value>
__device__ __forceinline__ Value sort_lanes(Value value) {
  const int lane = static_cast<int>(threadIdx.x % kLanes);
#pragma unroll
  for (int run = 2; run <= kLanes; run *= 2) {
#pragma unroll
    for (int distance = run / 2; distance > 0; distance /= 2) {
      const Value other =
          shuffle_words(value, [=](unsigned word) { return __shfl_xor_sync(0xffffffffu, word, distance); });
      const bool takes_less = ((lane & distance) == 0) == ((lane & run) == 0);
      value = takes_less ? minimum(value, other) : maximum(value, other);
    }
  }
  return value;
}

template <typename Word>
__device__ __forceinline__ Word exchange_words(Word word, int mask) {
  if constexpr (sizeof(Word) == 16) {  // the lower half is a place, of 32 bits
    const uint64_t high = __shfl_xor_sync(0xffffffffu, static_cast<uint64_t>(word >> 64), mask);
    const uint32_t low = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(word), mask);
    return Word{high} << 64 | low;
  } else {
    return __shfl_xor_sync(0xffffffffu, word, mask);
  }
}

// Joins the sorted runs of neighbouring groups of `lanes` lanes in pairs, by a bitonic merge (Batcher 1968). Lane l of
// a group has its run's words from l * kItems on. kItems and `lanes` are powers of two.
template <int kItems, typename Word>
__device__ __forceinline__ void join_lanes(Word (&words)[kItems], int lanes) {
  const int lane = threadIdx.x % kWarp;
  const auto keep = [](bool greater, Word mine, Word other) { return (mine < other) == greater ? other : mine; };
  // The second run is read backwards, so that the smaller items go to the first half.
  const bool second = lane & lanes;
#pragma unroll
  for (int i = 0; i < kItems / 2; ++i) {
    Word& low = words[i];
    Word& high = words[kItems - 1 - i];
    const Word other_low = exchange_words(high, 2 * lanes - 1);
    const Word other_high = exchange_words(low, 2 * lanes - 1);
    low = keep(second, low, other_low);
    high = keep(second, high, other_high);
  }
#pragma unroll
  for (int stride = lanes / 2; stride > 0; stride /= 2) {
    const bool right = lane & stride;
#pragma unroll
    for (int i = 0; i < kItems; ++i) words[i] = keep(right, words[i], exchange_words(words[i], stride));
  }
#pragma unroll
  for (int stride = kItems / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if ((i & stride) == 0) network::exchange(words[i], words[i + stride]);
    }
  }
}

// Sorts the words of each group of `lanes` lanes: each lane its own words by a network, then runs of lanes are joined.
// It is not stable. All lanes of a warp call it.
template <int kItems, typename Word>
__device__ __forceinline__ void sort_groups(Word (&words)[kItems], int lanes) {
  network_sort(words);
#pragma unroll 1
  for (int run = 1; run < lanes; run *= 2) join_lanes(words, run);
}

}  // namespace mgpu::cuda
