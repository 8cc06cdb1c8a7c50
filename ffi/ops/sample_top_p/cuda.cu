#include "cuda/launch/launch.h"
#include "ops/sample_top_p/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace sampling {

template <typename From>
void run(const Call& call, const SampleTopPOperands& operands, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const Task task{operands, operands.layout(workspace)};
  check(call, cudaMemsetAsync(task.scratch.state, 0, task.scratch.bytes, stream));
  const auto blocks = static_cast<unsigned>(operands.rows * operands.parts());
  find_best<From><<<blocks, kThreads, 0, stream>>>(task);
  check_launch(call);
  add_up_bins<From><<<blocks, kThreads, 0, stream>>>(task);
  check_launch(call);
  list_tokens<From><<<blocks, kThreads, 0, stream>>>(task);
  check_launch(call);
  draw_tokens<From><<<static_cast<unsigned>(operands.rows), kSampleDrawThreads, 0, stream>>>(task);
  check_launch(call);
}

}  // namespace sampling

void sample_top_p(const Call& call, cudaStream_t stream) {
  const SampleTopPOperands operands(call);
  if (operands.rows == 0) return;
  call.expect(operands.length > 0 && operands.length <= INT32_MAX, "logits: expected rows of 1 to 2^31 - 1 tokens");
  switch (operands.type) {
    case DType::f16: return sampling::run<sampling::FromHalf>(call, operands, stream);
    case DType::bf16: return sampling::run<sampling::FromBfloat>(call, operands, stream);
    case DType::f32: return sampling::run<sampling::FromFloat>(call, operands, stream);
    default: call.fail("logits: expected float16, bfloat16 or float32, got " + std::string(dtype_name(operands.type)));
  }
}

}  // namespace mgpu::cuda
