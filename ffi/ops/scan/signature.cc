#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/scan/plan.h"

namespace mgpu {

const Signature signature::scan{
    .operands = {"x: any [..n]", "heads: index [m]", "count: index [1]?", "initial: =x [1]?"},
    .results = {"result: reduced [n]", "totals: =result [] if total"},
    .attributes = {{"op", &kOperatorValues}, {"exclusive"}, {"reverse"}, {"total"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["scan"] = {cpu::kScanTile};
          for (int width : kKeyWidths) {
            sizes["scan"].insert(kScanTileBytes / width);
            for (int state_width : kStateWidths) sizes["scan"].insert(scan_segments_shape(state_width, width).tile());
          }
        },
};

ScanOperands::ScanOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], &in["heads"], &in["count"]),
      exclusive(in.flag("exclusive")),
      reverse(in.flag("reverse")),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  if (in.flag("total")) totals = in.result("totals").data;
  initial = in["initial"].size() > 0 ? in["initial"].data : nullptr;
  call.expect(!initial || !(has_heads() || gives_index(kind)), "expected no heads and no index with an initial item");
}
ScanOperands::ScanOperands(const Call& call) : ScanOperands(call, Arguments(call, signature::scan)) {}

}  // namespace mgpu
