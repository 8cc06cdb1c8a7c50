// Finds the last of several blocks to finish. This block can read the results of all the others.
#pragma once

#include "algorithm/common.h"

namespace mgpu::cuda {

// Whether this block is the last of `blocks` blocks to finish. If it is, it can read the memory that the others wrote.
// All threads of each block call this function once. The counter `finished` is 0 before the first block calls it, and
// again after the last one has.
__device__ inline bool is_last_block(unsigned* finished, int64_t blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(finished, 1u) == static_cast<unsigned>(blocks) - 1;
    if (is_last) *finished = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

}  // namespace mgpu::cuda
