#include "ops/segmented_softmax/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t SegmentedSoftmaxOperands::tiles() const {
  return ceil_div<int64_t>(segments.total(), softmax_shape(accumulator_bytes()).tile());
}

SegmentedSoftmaxOperands::Scratch SegmentedSoftmaxOperands::layout(Workspace& workspace) const {
  const int64_t count = tiles();
  const int64_t part = 2 * accumulator_bytes();
  return {workspace.take<int64_t>(count + 1), workspace.take<int>(count), workspace.take<int>(count),
          workspace.take<char>(count * part), workspace.take<char>(count * part)};
}

int64_t workspace::segmented_softmax(const Call& call) { return layout_bytes(SegmentedSoftmaxOperands(call)); }

}  // namespace mgpu
