#include "ops/reduce/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t ReduceOperands::chunk_items() const {
  const int64_t width = byte_width(dtype);
  if (segments.rows >= kReduceMinBlockRows && segments.rows <= kReduceMaxBlockRows &&
      segments.length * width <= kReduceBlockRowBytes) {
    return maximum<int64_t>(segments.length, 1);
  }
  return (segments.total() * width > kReduceMaxChunks * kReduceChunkBytes ? 2 : 1) * kReduceChunkBytes / width;
}

bool ReduceOperands::has_short_rows() const { return segments.length <= kReduceShortRow; }

char* ReduceOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  return workspace.take<char>(has_short_rows() ? 0 : segments.rows * chunks() * state_bytes);
}

int64_t workspace::reduce(const Call& call) {
  const ReduceOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

SegmentTiling SegmentedReduceOperands::tiling(int64_t state_bytes) const { return {ends(), state_bytes, state_bytes}; }

SegmentTiling::Scratch SegmentTiling::layout(Workspace& workspace) const {
  const int64_t count = tiles();
  return {workspace.take<int64_t>(count + 1), workspace.take<char>(count * state_bytes),
          workspace.take<char>(count * since_restart_bytes(state_bytes))};
}

int64_t workspace::segmented_reduce(const Call& call) {
  const SegmentedReduceOperands operands(call);
  return layout_bytes(operands.tiling(operands.state_bytes(call)));
}

}  // namespace mgpu
