// Launches of kernels that follow each other.
#pragma once

#include "cuda/launch.h"

namespace mgpu::cuda {

// Launches a kernel whose start overlaps the end of the last one: all its blocks call wait_for_last_kernel().
template <typename... Parameters, typename... Arguments>
void launch_overlapping(const Call& call, cudaStream_t stream, void (*kernel)(Parameters...), int64_t blocks,
                        int threads, const Arguments&... arguments) {
  cudaFuncAttributes attributes;
  check(call, cudaFuncGetAttributes(&attributes, kernel));
  cudaLaunchAttribute overlap = overlap_attribute();
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = static_cast<unsigned>(blocks);
  configuration.blockDim = static_cast<unsigned>(threads);
  configuration.stream = stream;
  configuration.attrs = &overlap;
  configuration.numAttrs = attributes.ptxVersion >= 90 ? 1 : 0;  // as the kernel was compiled
  check(call, cudaLaunchKernelEx(&configuration, kernel, arguments...));
}

}  // namespace mgpu::cuda
