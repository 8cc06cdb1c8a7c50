#include "ops/reduce_by_id/plan.h"

#include "algorithm/exact_sum.h"
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

bool ReduceByIdOperands::sums_exactly() const {
  return kind == OperatorKind::kAdd && mantissa_bits(dtype) > 0 && dtype != DType::f64;
}

bool ReduceByIdOperands::sums_many() const {
  const int64_t items = segments.length * width;
  return items >= maximum(kDigitItems, kDigitItemsPerSlot * slots()) && segments.length <= kMaxDigitLength;
}

bool ReduceByIdOperands::sums_few() const {
  return segments.length * width * clamp<int64_t>(segments.rows, 1, 8) <= kFewSumItems;
}

char* ReduceByIdOperands::layout(Workspace& workspace, const Call& call) const {
  if (sums_exactly()) {
    const int64_t limbs = segments.rows * slots() * (ExactSum(segments.length).limbs() + 1);
    return workspace.take<char>((limbs + 1) * int64_t{sizeof(uint64_t)});
  }
  const int64_t states = segments.rows * slots() * (in_any_order(call) ? 1 : parts());
  return workspace.take<char>(states * state_bytes(call));
}

int64_t workspace::reduce_by_id(const Call& call) {
  const ReduceByIdOperands operands(call);
  return layout_bytes<ReduceByIdOperands, const Call&>(operands, call);
}

}  // namespace mgpu
