// Finds the block that finishes last, which can read what the others wrote.
#pragma once

namespace mgpu::cuda {

// Whether this block is the last of some blocks to finish, which can read what the others wrote. All threads of each
// block call it once. The number of finished blocks is 0 before and after.
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
