// The check waits for the device, so only the handler of `check` calls it.
#include <cstddef>
#include <vector>

#include "cuda/launch/launch.h"
#include "runtime/check.h"

namespace mgpu::cuda {

void check_precondition(const Call& call, std::string_view expected, cudaStream_t stream) {
  expect_check_operands(call);
  const Array& argument = call.operands[0];
  const Array& positions = call.operands[1];
  const Array& values = call.operands[2];
  const Array& result = call.results[0];
  std::vector<int32_t> host_positions(positions.size());
  std::vector<std::byte> host_values(values.bytes());
  check(call,
        cudaMemcpyAsync(host_positions.data(), positions.data, positions.bytes(), cudaMemcpyDeviceToHost, stream));
  check(call, cudaMemcpyAsync(host_values.data(), values.data, values.bytes(), cudaMemcpyDeviceToHost, stream));
  if (result.data != argument.data) {
    check(call, cudaMemcpyAsync(result.data, argument.data, result.bytes(), cudaMemcpyDeviceToDevice, stream));
  }
  check(call, cudaStreamSynchronize(stream));
  throw_if_broken(call, host_positions.data(), host_values.data(), expected);
}

}  // namespace mgpu::cuda
