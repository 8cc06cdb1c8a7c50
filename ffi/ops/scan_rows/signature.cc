#include "ops/common/read.h"
#include "ops/scan_rows/plan.h"

namespace mgpu {

const Signature signature::scan_rows{
    .operands = {"x: any [..n, width]", "heads: index [m]", "count: index [1]?"},
    .results = {"result: reduced [n, width]", "totals: =result [width] if total"},
    .attributes = {{"op", &kOperatorValues}, {"exclusive"}, {"reverse"}, {"total"}},
    .tiles =
        [](TileSizes& sizes) {
          for (int width : kKeyWidths) {
            const RowScanTiling tiling{INT32_MAX, 128, width};
            sizes["scan_rows"].insert({tiling.thread_rows(), tiling.tile_rows()});
          }
        },
};

ScanRowsOperands::ScanRowsOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], &in["heads"], &in["count"], 2),
      width(Call::length(in["x"])),
      exclusive(in.flag("exclusive")),
      reverse(in.flag("reverse")),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  if (in.flag("total")) totals = in.result("totals").data;
}
ScanRowsOperands::ScanRowsOperands(const Call& call) : ScanRowsOperands(call, Arguments(call, signature::scan_rows)) {}

}  // namespace mgpu
