#include "ops/reduce_rows/plan.h"

#include "ops/common/dispatch_operator.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

RowTiling ReduceRowsOperands::tiling(const RowOperator& op) const {
  const int64_t row_bytes = sources.width * byte_width(dtype), rows = sources.problems * sources.count;
  const bool rereads = sources.indices.data && byte_width(dtype) >= 4 &&
                       sources.problems * sources.length >= kReduceRowsLeastReads * rows;
  // A unit takes a word (two for the number of a row that may need 64 bits), and a state for the row's weight.
  const int unit_bytes = (sources.has_long_numbers() ? 8 : 4) + op.state_bytes;
  return {ends().units(), sources.width, op, unit_bytes, row_bytes, rereads ? rows * row_bytes : 0};
}

ReduceRowsOperands::Scratch ReduceRowsOperands::layout(Workspace& workspace, const RowOperator& op) const {
  if (sources.width == 0) return {};
  const int64_t tiles = tiling(op).tiles();
  const int64_t bytes = tiles * sources.width * op.state_bytes;
  return {workspace.take<int64_t>(tiles + 1), workspace.take<int64_t>(2 * tiles), workspace.take<char>(bytes),
          workspace.take<char>(bytes)};
}

int64_t workspace::reduce_rows(const Call& call) {
  const ReduceRowsOperands operands(call);
  int64_t bytes = 0;
  operands.dispatch_reduction<true>(call,
                                    [&](auto op) { bytes = layout_bytes(operands, row_operator<decltype(op)>()); });
  return bytes;
}

int64_t workspace::gathered_rows(const Call& call) {
  const GatheredRowsOperands operands(call);
  int64_t bytes = 0;
  const auto count = [&](auto op) { bytes = layout_bytes(operands, row_operator<decltype(op)>()); };
  if (operands.groups > 0) {
    dispatch_weighted<ArithmeticKind::kEither>(call, operands.dtype, operands.sum_dtype, count);
  } else {
    operands.dispatch_reduction<true>(call, count);
  }
  return bytes;
}

}  // namespace mgpu
