#include "cuda/launch/launch.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_order_statistics/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace segment_ranks {

template <typename Order>
void run(const Call& call, const SegmentedOrderStatisticsOperands& operands, Order order, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const Task<Order> task{operands, operands.layout(workspace), order};
  check(call, cudaMemsetAsync(task.scratch.list.listed, 0, 2 * sizeof(unsigned), stream));
  const int log_lanes = log_group_lanes(operands, mean_lane_items(sizeof(typename Order::Word)));
  const int64_t blocks = ceil_div<int64_t>(operands.rows * operands.segments, kThreads >> log_lanes);
  find_in_segments<Order><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(task, log_lanes);
  check_launch(call);
  if (task.scratch.list.segments_room == 0) return;
  const auto kernel = count_segment_digits<Order>;
  constexpr int64_t kBytes = SegmentDigits<Order>::kCounterBytes;
  const int resident = resident_blocks(call, kernel, kDigitThreads, kBytes, task.scratch.list.parts_room);
  constexpr int kBits = 8 * sizeof(typename Order::Word);
  for (int shift = kBits - kSegmentDigitBits; shift >= 0; shift -= kSegmentDigitBits) {
    kernel<<<resident, kDigitThreads, kBytes, stream>>>(task,
                                                        {shift, kSegmentDigitBits, shift == kBits - kSegmentDigitBits});
    check_launch(call);
  }
}

}  // namespace segment_ranks

void segmented_order_statistics(const Call& call, cudaStream_t stream) {
  const SegmentedOrderStatisticsOperands operands(call);
  if (operands.rows * operands.segments * operands.rank_count == 0) return;
  if (operands.length == 0) {  // the kernel reads an item of each segment
    const int64_t results = operands.rows * operands.segments * operands.rank_count;
    return check(call, cudaMemsetAsync(operands.values, 0, results * byte_width(operands.key_type), stream));
  }
  if (operands.rank_count > kMaxSegmentRanks) {
    call.fail("ranks: expected at most " + std::to_string(kMaxSegmentRanks) + " per segment");
  }
  dispatch_order(call, operands.key_type, false,
                 [&](auto order) { segment_ranks::run(call, operands, order, stream); });
}

}  // namespace mgpu::cuda
