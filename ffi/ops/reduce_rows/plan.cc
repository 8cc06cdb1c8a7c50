#include "ops/reduce_rows/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

RowTiling ReduceRowsOperands::tiling(int vector) const { return {ends().units(), sources.width, vector}; }

ReduceRowsOperands::Scratch ReduceRowsOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  if (sources.width == 0) return {};
  int64_t tiles = 0;
  for (int vector : {1, 2, 4, 8}) tiles = maximum(tiles, tiling(vector).tiles());
  const int64_t bytes = tiles * sources.width * state_bytes;
  return {workspace.take<int64_t>(tiles + 1), workspace.take<int64_t>(tiles), workspace.take<char>(bytes),
          workspace.take<char>(bytes)};
}

int64_t workspace::reduce_rows(const Call& call) {
  const ReduceRowsOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

}  // namespace mgpu
