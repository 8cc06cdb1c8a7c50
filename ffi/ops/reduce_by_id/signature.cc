#include "ops/common/dispatch_operator.h"
#include "ops/common/read.h"
#include "ops/reduce_by_id/plan.h"

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
  const Array& out = in.result("result");
  if (in.flag("wide")) sum_dtype = in.result("result").dtype;
  size = in.attribute("size");
  segments.rows = Call::batch(out, 2);
  segments.counts = call.live_counts(in["count"], segments.rows);
  x_stride = call.row_stride(in["x"], segments.length * width, segments.rows, "x", 2) / maximum<int64_t>(width, 1);
  ids = call.index_vector(in["ids"], "ids");
  ids_stride = call.row_stride(in["ids"], segments.length, segments.rows, "ids");
  positions = segments.length;
}
ReduceByIdOperands::ReduceByIdOperands(const Call& call)
    : ReduceByIdOperands(call, Arguments(call, signature::reduce_by_id)) {}

}  // namespace mgpu
