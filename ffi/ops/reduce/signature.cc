#include "cpu/policy.h"
#include "cuda/policy.h"
#include "ops/common/read.h"
#include "ops/reduce/operands.h"

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

char* ReduceOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  return workspace.take<char>(has_short_rows() ? 0 : segments.rows * chunks() * state_bytes);
}

int64_t workspace::reduce(const Call& call) {
  const ReduceOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

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

SegmentTiling::Scratch SegmentTiling::layout(Workspace& workspace) const {
  const int64_t count = tiles();
  return {workspace.take<int64_t>(count + 1), workspace.take<char>(count * state_bytes),
          workspace.take<char>(count * since_restart_bytes(state_bytes))};
}

int64_t workspace::segmented_reduce(const Call& call) {
  const SegmentedReduceOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

}  // namespace mgpu
