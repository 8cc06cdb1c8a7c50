// Helpers for launches.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <stdexcept>

#include "algorithm/row_tiles.h"
#include "runtime/call.h"
#include "runtime/plan.h"

namespace mgpu::cuda {

// The handler reports an internal error, or that memory is exhausted. CUDA keeps the failure as the thread's last
// error; unread, it would be attributed to the next launch.
inline void check(const Call&, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  if (status == cudaErrorMemoryAllocation) throw DeviceMemoryError();
  throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

// Throws if CUDA has refused the launch before this call.
// CUDA does not report that as an error of the stream.
inline void check_launch(const Call& call) { check(call, cudaGetLastError()); }

// The bytes of shared memory that the device grants a block
// on request, or MGPU_SHARED_MEMORY_LIMIT if that is less.
inline int64_t shared_memory_limit(const Call& call) {
  static const int64_t kCap = [] {
    const char* const bytes = std::getenv("MGPU_SHARED_MEMORY_LIMIT");
    return bytes ? std::strtoll(bytes, nullptr, 10) : INT64_MAX;
  }();
  int device = 0, bytes = 0;
  check(call, cudaGetDevice(&device));
  check(call, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return minimum<int64_t>(bytes, kCap);
}

inline int64_t multiprocessors(const Call& call) {
  int device = 0, count = 0;
  check(call, cudaGetDevice(&device));
  check(call, cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

inline Traits device_traits(const Call& call) {
  int device = 0;
  check(call, cudaGetDevice(&device));
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check(call, cudaDeviceGetAttribute(&value, name, device));
    return int64_t{value};
  };
  return {
      .multiprocessors = multiprocessors(call),
      .shared_memory = maximum(shared_memory_limit(call), kMinSharedMemory),
      .l2_cache = attribute(cudaDevAttrL2CacheSize),
      .capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor)};
}

// Every device grants a block 48 KB of shared memory without a request. For more, this sets the kernel's limit to that
// of the device, not to `bytes`: another thread may be about to launch the same kernel with more.
template <typename Kernel>
void allow_shared(const Call& call, Kernel kernel, size_t bytes) {
  constexpr int64_t kUnasked = 48 << 10;
  cudaFuncAttributes attributes;
  check(call, cudaFuncGetAttributes(&attributes, kernel));
  const int64_t needed = static_cast<int64_t>(attributes.sharedSizeBytes + bytes);
  const int64_t limit = shared_memory_limit(call);
  if (needed > limit) {
    throw std::runtime_error("shared memory: expected a GPU that grants a block " + std::to_string(needed) +
                             " bytes, got " + std::to_string(limit));
  }
  if (needed <= kUnasked) return;
  check(call, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(limit - static_cast<int64_t>(attributes.sharedSizeBytes))));
}

template <typename Kernel, typename... Arguments>
void launch_rows(const Call& call, cudaStream_t stream, Kernel kernel, const RowTiles& tiles, size_t shared_bytes,
                 const Arguments&... arguments) {
  kernel<<<static_cast<unsigned>(tiles.tiles()), RowTiles::kThreads, shared_bytes, stream>>>(arguments...);
  check_launch(call);
}

// The blocks of a persistent kernel: as many as the device holds at once, and no more than there is work.
template <typename Kernel>
int resident_blocks(const Call& call, Kernel kernel, int threads, size_t shared_bytes, int64_t work) {
  int per_processor = 0;
  check(call, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, threads, shared_bytes));
  return static_cast<int>(clamp<int64_t>(work, 1, multiprocessors(call) * maximum(per_processor, 1)));
}

}  // namespace mgpu::cuda
