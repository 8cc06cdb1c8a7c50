#include "cuda/launch/overlapping.h"
#include "cuda/launch/shapes.h"
#include "ops/group_search/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace group_searching {

template <typename Index, bool kForward>
void run(const Call& call, const GroupSearchOperands& operands, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const int64_t parts = operands.cuda_parts(multiprocessors(call));
  const GroupSearchTask task{operands, parts, operands.layout(workspace, parts)};
  const auto blocks = static_cast<unsigned>(operands.problems * task.parts);
  const auto kernel = search_parts<Index, kForward>;
  allow_shared(call, kernel, kSearchBytes);
  if (task.parts > 1) {
    find_lasts<Index, kForward><<<blocks, kGroupLastsThreads, kTableBytes, stream>>>(task);
    check_launch(call);
    const dim3 groups(ceil_div(kGroupTable, kSpreadGroups), static_cast<unsigned>(operands.problems));
    launch_overlapping(call, stream, bring_lasts_on<Index>, groups, kWarp * kSpreadWarps, 0, task);
  }
  launch_overlapping(call, stream, kernel, blocks, kThreads, kSearchBytes, task);
}

}  // namespace group_searching

void list_group_search_shapes(const Call&, KernelShapeList& list) {
  using namespace group_searching;
  constexpr int64_t kBytes = kSearchBytes + sizeof(int);
  list.push_back({"rows of a group", {{kBytes, kBytes}}});
}

void group_search(const Call& call, cudaStream_t stream) {
  const GroupSearchOperands operands(call);
  if (operands.problems * operands.a_length == 0) return;
  operands.dispatch(
      [&](auto index, auto forward) { group_searching::run<decltype(index), forward()>(call, operands, stream); });
}

}  // namespace mgpu::cuda
