#pragma once

#include "cuda/ptx.cuh"

namespace mgpu::cuda {

// Counters in shared memory, held by a 32-bit address: with a pointer, the compiler recomputes the base of shared
// memory for each addition.
class SharedCounters {
 public:
  explicit __device__ SharedCounters(const unsigned* first) : first_(shared_address(first)) {}

  __device__ __forceinline__ void add_one(int counter) const {
    const uint32_t address = first_ + static_cast<uint32_t>(counter) * uint32_t{sizeof(unsigned)};
    atomicAdd(static_cast<unsigned*>(__cvta_shared_to_generic(address)), 1u);
  }

 private:
  uint32_t first_;
};

}  // namespace mgpu::cuda
