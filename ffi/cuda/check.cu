// The check of a precondition on CUDA. It waits for the device, so it is no part of an ordinary handler.
#include <vector>

#include "check.h"
#include "cuda/launch.cuh"

namespace mgpu::cuda {

void check_precondition(const Call& call, std::string_view expected, cudaStream_t stream) {
  const Array& positions = check_positions(call);
  const Array& argument = call.operands[0];
  const Array& result = call.results[0];
  std::vector<int32_t> host(positions.size());
  check(call, cudaMemcpyAsync(host.data(), positions.data, positions.bytes(), cudaMemcpyDeviceToHost, stream));
  if (result.data != argument.data) {
    check(call, cudaMemcpyAsync(result.data, argument.data, result.bytes(), cudaMemcpyDeviceToDevice, stream));
  }
  check(call, cudaStreamSynchronize(stream));
  throw_if_broken(host.data(), positions.size(), expected);
}

}  // namespace mgpu::cuda
