// Bitonic sort of one value per lane.
#pragma once

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

}  // namespace mgpu::cuda
