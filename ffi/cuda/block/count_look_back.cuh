// Decoupled look-back for counts: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back"
// (2016). Sums of integers are exact, so a tile may add up any mixture of counts and sums of its predecessors.
//
//   const int64_t tile = take_ticket(&counter, ticket);            // counter and words zeroed before the launch
//   if (thread == 0) publish_count(words, tile, is_first, count);  // as soon as it is known
//   ... what needs no prefix ...
//   if (warp == 0) before = count_before(words, tile, is_first, count);  // all lanes of one warp
#pragma once

#include "cuda/block/look_back.cuh"

namespace mgpu::cuda {

// One word per tile: 0, then the tile's count, then the sum of the row's counts up to and including the tile. The two
// highest bits tell which.
constexpr uint64_t kCountKnown = uint64_t{1} << 62;
constexpr uint64_t kSumKnown = uint64_t{1} << 63;
constexpr int64_t kLargestCount = (int64_t{1} << 62) - 1;

__device__ __forceinline__ int64_t add_counts(int64_t x, int64_t y) { return minimum(x + y, kLargestCount); }

// One thread calls this. A row's first tile knows its sum at once, so no look-back goes past it.
__device__ __forceinline__ void publish_count(uint64_t* words, int64_t tile, bool first_of_row, int64_t count) {
  store_relaxed(words + tile, (first_of_row ? kSumKnown : kCountKnown) | static_cast<uint64_t>(count));
}

// The sum of the counts of the row's earlier tiles, in every lane of the one full warp that calls this.
__device__ inline int64_t count_before(uint64_t* words, int64_t tile, bool first_of_row, int64_t count) {
  if (first_of_row) return 0;
  const int lane = threadIdx.x % kWarp;
  int64_t before = 0;
  unsigned sums = 0;
  for (int64_t mine = tile - 1 - lane; sums == 0; mine -= kWarp) {
    uint64_t word = kSumKnown;
    unsigned needed, missing;
    do {
      if (mine >= 0) load_relaxed(word, words + mine);
      sums = __ballot_sync(0xffffffffu, word >= kSumKnown);
      needed = 2 * (sums & -sums) - 1;  // lanes up to that of the nearest sum; all lanes if there is none
      missing = __ballot_sync(0xffffffffu, word < kCountKnown) & needed;
    } while (missing != 0);
    const int64_t value = needed >> lane & 1 ? static_cast<int64_t>(word & kLargestCount) : 0;
    before = add_counts(before, fold_warp(value, add_counts));
  }
  if (lane == 0) store_relaxed(words + tile, kSumKnown | static_cast<uint64_t>(add_counts(before, count)));
  return before;
}

}  // namespace mgpu::cuda
