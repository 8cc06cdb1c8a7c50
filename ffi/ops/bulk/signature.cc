#include "ops/bulk/operands.h"
#include "ops/load_balance/plan.h"
#include "ops/load_balance/read_work.h"
#include "ops/move_rows/read_rows.h"

namespace mgpu {

const Signature signature::bulk_remove{
    .operands = {"x: any [n, width]", "indices: index [m]", "count: index [1]?", "fill_value: =result [1]"},
    .results = {"result: =x [size, width]"},
};
const Signature signature::bulk_insert{
    .operands = {"x: any [n, width]", "indices: index [m]", "values: =x [m, width]", "count: index [1]?",
                 "fill_value: =result [1]"},
    .results = {"result: =x [size, width]"},
};

BulkOperands::BulkOperands(const Call& call, bool inserts) {
  const Arguments in(call, inserts ? signature::bulk_insert : signature::bulk_remove);
  const Array& result = in.result("result");
  work.problems = Call::batch(result, 2);
  out = read_rows(call, result, work.problems, "result");
  x = read_rows(call, in["x"], work.problems, "x");
  work.size = out.count;
  work.capacity = x.count;
  work.drift = inserts ? 1 : -1;
  read_work(call, in, work, "indices", "count");
  fill = read_fill(call, in["fill_value"], work.problems);
  if (inserts) values = read_rows(call, in["values"], work.problems, "values");
}

WorkTiles BulkOperands::layout(Workspace& workspace) const {
  return take_work_tiles(workspace, work, work_items(out.row_bytes, row_word(out.row_bytes)));
}

int64_t workspace::bulk_remove(const Call& call) { return layout_bytes(BulkOperands(call, false)); }
int64_t workspace::bulk_insert(const Call& call) { return layout_bytes(BulkOperands(call, true)); }

}  // namespace mgpu
