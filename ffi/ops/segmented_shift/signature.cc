#include "ops/load_balance/plan.h"
#include "ops/load_balance/read_work.h"
#include "ops/move_rows/read_rows.h"
#include "ops/segmented_shift/operands.h"

namespace mgpu {

const Signature signature::segmented_shift{
    .operands = {"x: any [n, width]", "heads: index [m]", "by: index [1]", "count: index [1]?",
                 "fill_value: =result [1]"},
    .results = {"result: =x [n, width]"},
};

SegmentedShiftOperands::SegmentedShiftOperands(const Call& call) {
  const Arguments in(call, signature::segmented_shift);
  const Array& result = in.result("result");
  work.problems = Call::batch(result, 2);
  out = read_rows(call, result, work.problems, "result");
  x = read_rows(call, in["x"], work.problems, "x");
  work.size = work.capacity = out.count;
  read_work(call, in, work, "heads", "count");
  call.expect(work.offsets.wide || work.size < int64_t{1} << 30, "heads: expected int64 for as many rows");
  by = call.index_vector(in["by"], "by");
  by_stride = call.row_stride(in["by"], 1, work.problems, "by");
  fill = read_fill(call, in["fill_value"], work.problems);
}

WorkTiles SegmentedShiftOperands::layout(Workspace& workspace) const {
  return take_work_tiles(workspace, work, work_items(out.row_bytes, row_word(out.row_bytes)));
}

int64_t workspace::segmented_shift(const Call& call) { return layout_bytes(SegmentedShiftOperands(call)); }

}  // namespace mgpu
