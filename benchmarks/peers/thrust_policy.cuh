#pragma once

#include <thrust/system/cuda/execution_policy.h>

#include "peers.cuh"

namespace mgpu::peers {

// Thrust's temporary memory comes from XLA's pool, like CUB's.
struct ThrustAllocator {
  using value_type = char;
  Scratch& scratch;
  char* allocate(std::ptrdiff_t bytes) { return static_cast<char*>(scratch.allocate(static_cast<size_t>(bytes))); }
  void deallocate(char*, size_t) {}
};

inline auto thrust_policy(ThrustAllocator& allocator, cudaStream_t stream) {
  return thrust::cuda::par_nosync(allocator).on(stream);
}

// CUB leaves its counts on the device; Thrust returns an iterator on the host.
inline void store_count(const Call& call, const Array& result, std::ptrdiff_t count, cudaStream_t stream) {
  const auto word = static_cast<int32_t>(count);
  cuda::check(call, cudaMemcpyAsync(result.data, &word, sizeof word, cudaMemcpyHostToDevice, stream));
}

}  // namespace mgpu::peers
