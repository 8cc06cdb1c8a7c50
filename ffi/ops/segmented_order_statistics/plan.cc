#include "ops/segmented_order_statistics/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

SegmentedOrderStatisticsOperands::Scratch SegmentedOrderStatisticsOperands::layout(Workspace& workspace) const {
  const int64_t all = rows * length;
  const int64_t room = length > kWarpSegment ? minimum(rows * segments, all / (kWarpSegment + 1)) : 0;
  const int64_t parts = room == 0 ? 0 : room + all / kLongSegmentPart;
  return {room,
          parts,
          workspace.take<unsigned>(2),
          workspace.take<LongSegment>(room),
          workspace.take<LongPart>(parts),
          workspace.take<uint64_t>(room * rank_count),
          workspace.take<int64_t>(room * rank_count),
          workspace.take<uint64_t>(room * rank_count * kSegmentDigits),
          workspace.take<unsigned>(room)};
}

int64_t workspace::segmented_order_statistics(const Call& call) {
  return layout_bytes(SegmentedOrderStatisticsOperands(call));
}

}  // namespace mgpu
