#pragma once

#include "algorithm/common.h"

namespace mgpu::cuda {

// Whether this is the last of `blocks` calls with one counter; the block can then read what the other callers
// wrote. All threads of a block call this. `finished` is 0 before the first call, and again after the last one.
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
