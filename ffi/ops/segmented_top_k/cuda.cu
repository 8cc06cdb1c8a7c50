#include "cuda/launch/launch.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_top_k/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace segment_top_k {

// For at most kTopKSteps results, or rows without items. Groups have as many lanes as plan.h says.
template <int kChoice, typename Order>
void find_short(const Call& call, const Task<Order>& task, cudaStream_t stream) {
  constexpr int kLanes = kTopKLanes[kChoice];
  const int64_t segments = task.operands.rows * task.operands.segments;
  if constexpr (kLanes < kWarp) {
    const bool has_room = task.operands.length <= task.operands.segments * kLanes * kTopKMeanItems;
    if (!has_room) return find_short<kChoice + 1>(call, task, stream);
  }
  const int64_t blocks = ceil_div<int64_t>(segments, kThreads / kLanes);
  find_in_segments<Order, kLanes><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(task);
  check_launch(call);
}

// For more than kTopKSteps results, with groups of as many lanes as in find_short.
template <typename Order>
void sort_short(const Call& call, const Task<Order>& task, cudaStream_t stream) {
  const int log_lanes = log_group_lanes(task.operands, kTopKMeanItems);
  const int64_t blocks = ceil_div<int64_t>(task.operands.rows * task.operands.segments, kThreads >> log_lanes);
  sort_in_segments<Order><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(task, log_lanes);
  check_launch(call);
}

template <bool kSorts, typename Order>
void run(const Call& call, const SegmentedTopKOperands& operands, Order order, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const Task<Order> task{operands, operands.layout(workspace), order};
  const LongSegments& list = task.scratch.list;
  if (list.segments_room > 0) check(call, cudaMemsetAsync(list.listed, 0, 2 * sizeof(unsigned), stream));
  if constexpr (kSorts) {
    sort_short(call, task, stream);
  } else {
    find_short<0>(call, task, stream);
  }
  if (list.segments_room == 0) return;
  const auto find = find_in_parts<Order, kSorts>;
  const int resident = resident_blocks(call, find, kPartThreads, 0, list.parts_room);
  find<<<resident, kPartThreads, 0, stream>>>(task);
  check_launch(call);
}

}  // namespace segment_top_k

void segmented_top_k(const Call& call, cudaStream_t stream) {
  const SegmentedTopKOperands operands(call);
  if (operands.rows * operands.segments * operands.k == 0) return;
  if (operands.k > kSegmentedTopKMaxK) call.fail("k: expected at most " + std::to_string(kSegmentedTopKMaxK));
  if (operands.k > kTopKSteps && operands.length > 0) {  // a sort reads an item of each segment
    return dispatch_key_order(call, operands.key_type, operands.largest,
                              [&](auto order) { segment_top_k::run<true>(call, operands, order, stream); });
  }
  dispatch_order(call, operands.key_type, operands.largest,
                 [&](auto order) { segment_top_k::run<false>(call, operands, order, stream); });
}

}  // namespace mgpu::cuda
