#include "ops/common/read.h"
#include "ops/interval_reduce/operands.h"

namespace mgpu {

const Signature signature::interval_reduce{
    .operands = {"x: any [n, width]", "low: index [k]", "widths: index [k]"},
    .results = {"result: reduced [k, width]"},
    .attributes = {{"op", &kOperatorValues}},
};

IntervalReduceOperands::IntervalReduceOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], nullptr, nullptr, 2),
      width(Call::length(in["x"])),
      count(Call::length(in["low"])),
      problems(Call::batch(in.result("result"), 2)),
      x_stride(call.row_stride(in["x"], segments.length * width, problems, "x", 2) / maximum<int64_t>(width, 1)),
      low(call.index_vector(in["low"], "low")),
      widths(call.index_vector(in["widths"], "widths")),
      low_stride(call.row_stride(in["low"], count, problems, "low")),
      widths_stride(call.row_stride(in["widths"], count, problems, "widths")),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  positions = segments.length;
}
IntervalReduceOperands::IntervalReduceOperands(const Call& call)
    : IntervalReduceOperands(call, Arguments(call, signature::interval_reduce)) {}

}  // namespace mgpu
