#include "ops/reduce_by_id/plan.h"

#include "ops/common/dispatch_operator.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t ReduceByIdOperands::parts() const {
  return clamp<int64_t>(ceil_div(segments.length * width, kIdPartItems), 1, kIdMaxParts);
}

bool ReduceByIdOperands::in_any_order(const Call& call) const {
  bool holds = false;
  dispatch_reduction<true>(call, [&](auto op) { holds = has_integer_state<decltype(op)>(); });
  return holds && kind != OperatorKind::kMul && slots() < int64_t{1} << 32 && width <= kMaxIdColumns;
}

bool ReduceByIdOperands::in_fixed_point() const {
  const bool sums_floats = kind == OperatorKind::kAdd && mantissa_bits(dtype) > 0 && dtype != DType::f64;
  return sums_floats && slots() <= kMaxFixedPointIds;
}

char* ReduceByIdOperands::layout(Workspace& workspace, const Call& call) const {
  if (in_fixed_point()) return workspace.take<char>(segments.rows * slots() * kFixedPointBytes);
  const int64_t states = segments.rows * slots() * (in_any_order(call) ? 1 : parts());
  return workspace.take<char>(states * state_bytes(call));
}

int64_t workspace::reduce_by_id(const Call& call) {
  const ReduceByIdOperands operands(call);
  return layout_bytes<ReduceByIdOperands, const Call&>(operands, call);
}

}  // namespace mgpu
