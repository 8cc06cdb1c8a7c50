// Prefixes by look-back that start anew with every row of a batch, of numbers below 2^62.
#pragma once

#include "cuda/cta/look_back.cuh"

namespace mgpu::cuda {

constexpr int64_t kRowStart = int64_t{1} << 62;

// Adds; what comes before a row's first tile, which is marked, does not count. Sums stay below the mark.
__device__ __forceinline__ int64_t add_in_row(int64_t x, int64_t y) {
  if (y & kRowStart) return y;
  return (x & kRowStart) | minimum((x & ~kRowStart) + y, kRowStart - 1);
}

// The sum of `count` over the earlier tiles of the row, in every lane of the warp that calls this. Every tile has to.
__device__ inline int64_t row_look_back(uint64_t* words, int64_t tiles, int64_t tile, bool first_of_row, int64_t count,
                                        bool needed) {
  const int64_t prefix = look_back(words, tiles, tile, first_of_row ? count | kRowStart : count, int64_t{0}, add_in_row,
                                   needed && !first_of_row);
  return first_of_row ? 0 : prefix & ~kRowStart;
}

}  // namespace mgpu::cuda
