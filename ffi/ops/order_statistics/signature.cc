#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/order_statistics/plan.h"

namespace mgpu {

const Signature signature::order_statistics{
    .operands = {"x: key [n]", "ranks: index [ranks]", "count: index [1]?"},
    .results = {"values: =x [ranks]"},
    .tiles = [](TileSizes& sizes) { sizes["order_statistics"] = {cpu::kOrderStatisticsPart, kRankPart}; },
};

OrderStatisticsOperands::OrderStatisticsOperands(const Call& call) {
  const Arguments in(call, signature::order_statistics);
  const Array& found = in.result("values");
  key_type = in["x"].dtype;
  length = Call::length(in["x"]);
  rank_count = Call::length(found);
  rows = Call::batch(found, 1);
  ranks = call.index_vector(in["ranks"], "ranks");
  ranks_stride = call.row_stride(in["ranks"], rank_count, rows, "ranks");
  counts = call.live_counts(in["count"], rows);
  x = in["x"].data;
  x_stride = call.row_stride(in["x"], length, rows, "x");
  values = found.data;
}

}  // namespace mgpu
