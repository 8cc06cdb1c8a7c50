// Copies from device to shared memory that run while the thread goes on. Items of 4, 8 and 16 bytes on sm_80 and
// newer; others are copied at once.
#pragma once

#include <cstdint>

namespace mgpu::cuda {

template <typename T>
__device__ void copy_async(T* shared, const T* global) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(global), "n"(sizeof(T))
        : "memory");
    return;
  } else if constexpr (sizeof(T) == 16) {  // past the L1 cache
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(global)
        : "memory");
    return;
  }
#endif
  *shared = *global;
}

// Closes the group of copies issued since the last call.
__device__ inline void copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending groups of this thread are unfinished.
template <int kPending>
__device__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace mgpu::cuda
