#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/reduce/plan.h"

namespace mgpu {

const Signature signature::reduce{
    .operands = {"x: any [..n]", "count: index [1]?"},
    .results = {"result: reduced []"},
    .attributes = {{"op", &kOperatorValues}, {"wide"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["reduce"] = {cpu::kReduceTile, kReduceShortRow};
          for (int width : kKeyWidths) sizes["reduce"].insert(kReduceChunkBytes / width);
        },
};

ReduceOperands::ReduceOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], nullptr, &in["count"]),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  if (in.flag("wide")) sum_dtype = in.result("result").dtype;
}
ReduceOperands::ReduceOperands(const Call& call) : ReduceOperands(call, Arguments(call, signature::reduce)) {}

const Signature signature::segmented_reduce{
    .operands = {"x: any [..n]", "heads: index [m]", "count: index [1]?"},
    .results = {"result: reduced [m]"},
    .attributes = {{"op", &kOperatorValues}, {"wide"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["segmented_reduce"] = {cpu::kReduceTile};
          for (int width : kStateWidths) sizes["segmented_reduce"].insert(SegmentTiling::tile_units(width));
        },
};

SegmentedReduceOperands::SegmentedReduceOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], &in["heads"], &in["count"]),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  if (in.flag("wide")) sum_dtype = in.result("result").dtype;
}
SegmentedReduceOperands::SegmentedReduceOperands(const Call& call)
    : SegmentedReduceOperands(call, Arguments(call, signature::segmented_reduce)) {}

}  // namespace mgpu
