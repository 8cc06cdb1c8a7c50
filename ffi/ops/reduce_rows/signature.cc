#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/reduce_rows/plan.h"

namespace mgpu {

const Signature signature::reduce_rows{
    .operands = {"x: any [..n, width]", "heads: index [m]", "indices: index [..items]?", "count: index [1]?"},
    .results = {"result: reduced [m, width]"},
    .attributes = {{"op", &kOperatorValues}, {"wide"}},
    .tiles = [](TileSizes& sizes) { sizes["reduce_rows"] = {cpu::kReduceRowsTile}; },
};

const Signature signature::gathered_rows{
    .operands = {"x: any [..n, width]", "heads: index [m]", "indices: index [..items]?",
                 "weights: =x [..entries, groups]?", "count: index [1]?"},
    .results = {"result: reduced [m, width]"},
    .attributes = {{"op", &kOperatorValues}, {"wide"}},
};

ReduceRowsOperands::ReduceRowsOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], &in["heads"], &in["count"], 2),
      sources{Call::length(in["x"]), segments.length, segments.length, segments.rows, {}},
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  if (in.flag("wide")) sum_dtype = in.result("result").dtype;
  const Array& indices = in["indices"];
  if (Call::length(indices) > 0) {
    sources.indices = call.index_vector(indices, "indices");
    sources.length = segments.length = Call::length(indices);
    call.expect_items(segments.total(), sources.width, "indices");
  }
}
ReduceRowsOperands::ReduceRowsOperands(const Call& call)
    : ReduceRowsOperands(call, Arguments(call, signature::reduce_rows)) {}

GatheredRowsOperands::GatheredRowsOperands(const Call& call, const Arguments& in) : ReduceRowsOperands(call, in) {
  const Array& of = in["weights"];
  if (Call::length(of) == 0) return;
  groups = Call::length(of);
  call.expect(of.dimensions[of.rank() - 2] == sources.length && sources.width % groups == 0,
              "weights: expected one for each item, or for equal parts of its row");
  call.expect(kind == OperatorKind::kAdd, "op: expected add where weights are given");
  weights = of.data;
}
GatheredRowsOperands::GatheredRowsOperands(const Call& call)
    : GatheredRowsOperands(call, Arguments(call, signature::gathered_rows)) {}

}  // namespace mgpu
