#pragma once

#include "cuda/launch/launch.h"

namespace mgpu::cuda {

// Launches a kernel that may start before the previous one in its stream is done (start_next_kernel of cuda/ptx.cuh).
// All its blocks must call wait_for_last_kernel() before they read what the previous one writes. A kernel that is
// compiled for less than sm_90 starts after the previous one has ended.
template <typename... Parameters, typename... Arguments>
void launch_overlapping(const Call& call, cudaStream_t stream, void (*kernel)(Parameters...), dim3 blocks, int threads,
                        int64_t shared_bytes, const Arguments&... arguments) {
  cudaFuncAttributes attributes;
  check(call, cudaFuncGetAttributes(&attributes, kernel));
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = blocks;
  configuration.blockDim = static_cast<unsigned>(threads);
  configuration.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  configuration.stream = stream;
  configuration.attrs = &overlap;
  configuration.numAttrs = attributes.ptxVersion >= 90 ? 1 : 0;  // the version for which the kernel was compiled
  check(call, cudaLaunchKernelEx(&configuration, kernel, arguments...));
}

}  // namespace mgpu::cuda
