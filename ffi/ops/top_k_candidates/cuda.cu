#include "cuda/launch/launch.h"
#include "cuda/launch/shapes.h"
#include "ops/top_k_candidates/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace candidates {

template <typename Order>
void run(const Call& call, const TopKCandidatesOperands& operands, Order order, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const Task<Order> task{operands, order, operands.parts(), operands.layout(workspace)};
  guess_bounds<Order><<<static_cast<unsigned>(operands.rows), kCandidateSampleThreads, 0, stream>>>(task);
  check_launch(call);
  const auto blocks = static_cast<unsigned>(operands.rows * task.parts.parts);
  mark_candidates<Order><<<blocks, kThreads, 0, stream>>>(task);
  check_launch(call);
  list_candidates<Order><<<blocks, kThreads, 0, stream>>>(task);
  check_launch(call);
}

}  // namespace candidates

void top_k_candidates(const Call& call, cudaStream_t stream) {
  const TopKCandidatesOperands operands(call);
  if (operands.rows == 0) return;
  call.expect(operands.length <= INT32_MAX, "x: expected rows of fewer than 2^31 items");
  dispatch_order(call, operands.key_type, operands.largest,
                 [&](auto order) { candidates::run(call, operands, order, stream); });
}

}  // namespace mgpu::cuda
