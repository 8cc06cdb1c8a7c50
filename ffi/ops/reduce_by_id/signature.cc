#include "ops/common/dispatch_operator.h"
#include "ops/common/read.h"
#include "ops/reduce_by_id/operands.h"

namespace mgpu {

const Signature signature::reduce_by_id{
    .operands = {"x: any [n, width]", "ids: index [n]", "count: index [1]?"},
    .results = {"result: reduced [size, width]"},
    .attributes = {{"op", &kOperatorValues}, {"wide"}, {"size", &kNumber}},
};

ReduceByIdOperands::ReduceByIdOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], nullptr, nullptr, 2),
      width(Call::length(in["x"])),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  const Array& of = in.result("result");
  if (in.flag("wide")) sum_dtype = in.result("result").dtype;
  size = in.attribute("size");
  segments.rows = Call::batch(of, 2);
  segments.counts = call.live_counts(in["count"], segments.rows);
  x_stride = call.row_stride(in["x"], segments.length * width, segments.rows, "x", 2) / maximum<int64_t>(width, 1);
  ids = call.index_vector(in["ids"], "ids");
  ids_stride = call.row_stride(in["ids"], segments.length, segments.rows, "ids");
  positions = segments.length;
}
ReduceByIdOperands::ReduceByIdOperands(const Call& call)
    : ReduceByIdOperands(call, Arguments(call, signature::reduce_by_id)) {}

bool ReduceByIdOperands::in_any_order(const Call& call) const {
  bool holds = false;
  dispatch_reduction<true>(call, [&](auto op) { holds = has_integer_state<decltype(op)>(); });
  return holds && kind != OperatorKind::kMul && slots() < int64_t{1} << 32 && width <= kMostIdColumns;
}

bool ReduceByIdOperands::in_fixed_point() const {
  const bool sums_floats = kind == OperatorKind::kAdd && mantissa_bits(dtype) > 0 && dtype != DType::f64;
  return sums_floats && slots() <= kMostFixedPointIds;
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
