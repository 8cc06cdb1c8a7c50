#include "ops/segmented_order_statistics/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

SegmentedOrderStatisticsOperands::Scratch SegmentedOrderStatisticsOperands::layout(Workspace& workspace) const {
  const LongSegments list(workspace, *this, kWarpSegment);
  const int64_t ranks = list.segments_room * rank_count;
  return {list, workspace.take<uint64_t>(ranks), workspace.take<int64_t>(ranks),
          workspace.take<uint64_t>(ranks * kSegmentDigits)};
}

int64_t workspace::segmented_order_statistics(const Call& call) {
  return layout_bytes(SegmentedOrderStatisticsOperands(call));
}

}  // namespace mgpu
