#include "operands/reduce_by_id.h"

#include "operands/read.h"

namespace mgpu {

const Signature signature::reduce_by_id{
    .operands = {"x", "ids", "count"},
    .results = {"result"},
    .attributes = {{"op", &kOperatorValues}, {"wide"}, {"size", &kNumber}},
};

ReduceByIdOperands::ReduceByIdOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], nullptr, in["count"], 2),
      width(Call::length(in["x"])),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  const Array& of = in.result("result");
  wide = in.flag("wide");
  size = in.attribute("size");
  call.expect(of.rank() >= 2 && of.dimensions[of.rank() - 2] == size, "result: expected `size` rows");
  segments.rows = Call::batch(of, 2);
  segments.counts = call.live_counts(in["count"], segments.rows);
  x_stride = call.row_stride(in["x"], segments.length * width, segments.rows, "x", 2) / maximum<int64_t>(width, 1);
  ids = call.index_vector(in["ids"], "ids");
  ids_stride = call.row_stride(in["ids"], segments.length, segments.rows, "ids");
  call.expect(Call::length(in["ids"]) == segments.length, "ids: expected one for each row");
  positions = segments.length;
  expect_result(call, of, segments.rows * slots());
}
ReduceByIdOperands::ReduceByIdOperands(const Call& call)
    : ReduceByIdOperands(call, Arguments(call, signature::reduce_by_id)) {}

char* ReduceByIdOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  return workspace.take<char>(segments.rows * parts() * slots() * state_bytes);
}

int64_t workspace::reduce_by_id(const Call& call) {
  const ReduceByIdOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

}  // namespace mgpu
