// Finds the places of a tile's items in a stable sort by one digit. Each warp has neighbouring items, and a lane every
// 32nd of them.
#pragma once

#include "algorithm/digits.h"
#include "cuda/block/partition.cuh"
#include "cuda/ptx.cuh"

namespace mgpu::cuda::sorting {

// Ballots are faster than the match instruction.
__device__ __forceinline__ unsigned lanes_of_same_digit(unsigned digit) {
  static_assert(kDigitBits == 8);
  unsigned lanes = lanes_of_same_bit(digit, 0);
#pragma unroll
  for (int bit = 1; bit < 7; bit += 2) {
    lanes = and_of_three(lanes, lanes_of_same_bit(digit, bit), lanes_of_same_bit(digit, bit + 1));
  }
  return lanes & lanes_of_same_bit(digit, 7);
}

// Replaces each warp's count of this thread's digit by the place of the warp's next item of that digit. All warps
// together have `count` such items. Returns where the digit begins. The first kDigits threads call it.
__device__ __forceinline__ unsigned turn_into_places(unsigned (*counts)[kDigits], int warps, unsigned count,
                                                     unsigned* sums) {
  const int digit = threadIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  unsigned end = count;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const unsigned below = __shfl_up_sync(~0u, end, distance);
    if (lane >= distance) end += below;
  }
  if (lane == kWarp - 1) sums[warp] = end;
  barrier_sync<1, kDigits>();
#pragma unroll
  for (int w = 0; w < kDigits / kWarp - 1; ++w) end += w < warp ? sums[w] : 0;
  const unsigned start = end - count;
  unsigned next = start;
#pragma unroll
  for (int w = 0; w < warps; ++w) {
    const unsigned of_warp = counts[w][digit];
    counts[w][digit] = next;
    next += of_warp;
  }
  return start;
}

// `next` has the warp's next place for each digit.
__device__ __forceinline__ unsigned take_place(unsigned* next, unsigned digit, unsigned lanes_before) {
  const unsigned same = lanes_of_same_digit(digit);
  volatile unsigned* const of_digit = next + digit;
  const unsigned begin = *of_digit;
  const unsigned before = __popc(same & lanes_before);
  __syncwarp();
  if (before == 0) *of_digit = begin + __popc(same);
  __syncwarp();
  return begin + before;
}

}  // namespace mgpu::cuda::sorting
