#pragma once

#include "cuda/block/partition.cuh"
#include "cuda/block/shuffle.cuh"

namespace mgpu::cuda {

// Calls put(i, owner) for each i of the range of each lane. A lane visits the first kOwn positions of its range, and
// the warp shares the rest, so all lanes must call this.
template <typename Put>
__device__ __forceinline__ void put_ranges(int64_t begin, int64_t end, int64_t owner, Put put) {
  constexpr int64_t kOwn = 32;
  const int64_t own_end = minimum(end, begin + kOwn);
#pragma unroll 4
  for (; begin < own_end; ++begin) put(begin, owner);
  for (unsigned lanes = __ballot_sync(~0u, begin < end); lanes != 0; lanes &= lanes - 1) {
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    const int64_t lane_end = shuffle(end, lane);
    const int64_t lane_owner = shuffle(owner, lane);
#pragma unroll 4
    for (int64_t i = shuffle(begin, lane) + threadIdx.x % kWarp; i < lane_end; i += kWarp) put(i, lane_owner);
  }
}

}  // namespace mgpu::cuda
