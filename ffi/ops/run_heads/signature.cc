#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/run_heads/plan.h"

namespace mgpu {

const Signature signature::run_heads{
    .operands = {"keys: key [..n]", "count: index [1]?"},
    .results = {"heads: index [size]", "firsts: =keys [size]", "covered: index []", "runs: index []"},
    .tiles =
        [](TileSizes& sizes) {
          sizes["run_heads"] = {cpu::kRunHeadsTile};
          for (int width : kKeyWidths) sizes["run_heads"].insert(run_heads_shape(width).tile());
        },
};

RunHeadsOperands::RunHeadsOperands(const Call& call) {
  const Arguments in(call, signature::run_heads);
  key_type = in["keys"].dtype;
  keys = in["keys"].data;
  rows.length = Call::length(in["keys"]);
  rows.rows = Call::batch(in["keys"], 1);
  rows.counts = call.live_counts(in["count"], rows.rows);
  const Array& firsts_out = in.result("firsts");
  size = Call::length(firsts_out);
  firsts = firsts_out.data;
  heads = call.index_result(in.result("heads"), rows.rows * size, "heads");
  covered = call.index_result(in.result("covered"), rows.rows, "covered");
  runs = call.index_result(in.result("runs"), rows.rows, "runs");
}

}  // namespace mgpu
