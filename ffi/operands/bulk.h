// The calls of bulk_remove and bulk_insert as their kernels see them: one load-balancing search, with the positions
// drifting by one from object to object.
#pragma once

#include "operands/load_balance.h"
#include "operands/rows.h"

namespace mgpu {

// bulk_remove's operands: x [.., n, elements], indices [.., m], count [.., 1] or absent, fill_value [.., 1];
// bulk_insert's: x, indices, values [.., m, elements], count, fill_value. Result: [.., size, elements].
struct BulkOperands {
  WorkList work;
  Rows x;
  Rows values{};  // of an insertion
  Fill fill;
  Rows out;

  BulkOperands(const Call& call, bool inserts) {
    call.expect(call.operands.size() == (inserts ? 5 : 4), "number of operands");
    const Array& result = call.results.at(0);
    const size_t count = inserts ? 3 : 2;
    work.problems = Call::batch(result, 2);
    out = read_rows(call, result, work.problems, "result");
    x = read_rows(call, call.operands[0], work.problems, "x");
    work.size = out.count;
    work.capacity = x.count;
    work.drift = inserts ? 1 : -1;
    read_work(call, work, {call.operands[1], "indices"}, {call.operands[count], "count"});
    fill = read_fill(call, call.operands[count + 1], result, work.problems);
    call.expect(x.row_bytes == out.row_bytes, "x: expected rows of the result's width");
    if (inserts) {
      values = read_rows(call, call.operands[2], work.problems, "values");
      call.expect(values.row_bytes == out.row_bytes, "values: expected rows of the result's width");
      call.expect(values.count == work.objects, "values: expected one row for each index");
    }
  }

  WorkTiles layout(Workspace& workspace) const { return take_work_tiles(workspace, work, is_wide_row(out.row_bytes)); }
};

}  // namespace mgpu
