#include "ops/segmented_top_k/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

SegmentedTopKOperands::Scratch SegmentedTopKOperands::layout(Workspace& workspace) const {
  const LongSegments list(workspace, *this, kTopKWarpSegment);
  return {list, workspace.take<uint32_t>(list.parts_room * k)};
}

int64_t workspace::segmented_top_k(const Call& call) {
  const SegmentedTopKOperands operands(call);
  if (operands.k > kSegmentedTopKMaxK) call.fail("k: expected at most " + std::to_string(kSegmentedTopKMaxK));
  return layout_bytes(operands);
}

}  // namespace mgpu
