#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch_operator.h"
#include "ops/interval_reduce/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace interval_reducing {

// Computes the totals of groups, and reduces the tiles that the previous kernel listed.
template <typename Operator>
void reduce_listed(const Call& call, const Task<Operator>& task, const Operator& op, int64_t tiles,
                   void (*reduce)(Task<Operator>, Operator), cudaStream_t stream) {
  const auto launch = [&](auto kernel, int64_t work, const auto&... arguments) {
    launch_overlapping(call, stream, kernel, resident_blocks(call, kernel, kThreads, 0, work), kThreads, 0, task, op,
                       arguments...);
  };
  for (int level = 0; level < task.groups.levels; level += kLevelsAtOnce) {
    const int64_t work = ceil_div<int64_t>(task.groups.count(level + 1), kTileGroups) * slices(task.operands.width);
    launch(level == 0 ? combine_groups<true, Operator> : combine_groups<false, Operator>, work, level);
  }
  launch(reduce, tiles);
}

template <typename Operator>
void run(const Call& call, const IntervalReduceOperands& operands, const Operator& op, cudaStream_t stream) {
  constexpr int64_t kStateBytes = sizeof(typename Operator::State);
  Workspace workspace = workspace_of(call);
  const Task<Operator> task{operands, operands.layout(workspace, kStateBytes), GroupLevels(operands.rows()),
                            is_aligned(operands.x)};
  const int64_t tiles = operands.problems * task.scratch.tiles;
  check(call, cudaMemsetAsync(task.scratch.far_count, 0, sizeof(unsigned), stream));
  const auto run_with = [&](auto first, auto listed) {
    first<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(task, op);
    check_launch(call);
    reduce_listed(call, task, op, tiles, listed, stream);
  };
  constexpr int kColumns = kThreadColumns<Operator>;
  if (operands.width == 1) {
    run_with(reduce_close_intervals<Operator>, reduce_far_intervals<Operator>);
  } else if (operands.width % kColumns == 0 && task.is_aligned && is_aligned(operands.result)) {
    run_with(reduce_intervals_of_rows<kColumns, false, Operator>, reduce_intervals_of_rows<kColumns, true, Operator>);
  } else {
    run_with(reduce_intervals_of_rows<1, false, Operator>, reduce_intervals_of_rows<1, true, Operator>);
  }
}

}  // namespace interval_reducing

void interval_reduce(const Call& call, cudaStream_t stream) {
  const IntervalReduceOperands operands(call);
  if (operands.problems * operands.count * operands.width == 0) return;
  const auto visit = [&](const auto& op) { interval_reducing::run(call, operands, op, stream); };
  if (operands.kind == OperatorKind::kLogsumexp) return dispatch_logsumexp(call, operands.dtype, visit);
  operands.dispatch<false>(call, visit);
}

}  // namespace mgpu::cuda
