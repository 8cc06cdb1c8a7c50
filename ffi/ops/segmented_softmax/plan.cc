#include "ops/segmented_softmax/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

SoftmaxTiling SegmentedSoftmaxOperands::tiling() const {
  return {segments.total(), width, static_cast<int>(byte_width(dtype))};
}

SegmentedSoftmaxOperands::Scratch SegmentedSoftmaxOperands::layout(Workspace& workspace) const {
  const int64_t tiles = tiling().tiles();
  const int64_t parts = tiles * width * 2 * (dtype == DType::f64 ? 8 : 4);
  return {workspace.take<int64_t>(tiles + 1), workspace.take<int>(tiles), workspace.take<int>(tiles),
          workspace.take<char>(parts), workspace.take<char>(parts)};
}

int64_t workspace::segmented_softmax(const Call& call) { return layout_bytes(SegmentedSoftmaxOperands(call)); }

}  // namespace mgpu
