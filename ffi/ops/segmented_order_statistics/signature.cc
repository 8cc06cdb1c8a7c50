#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/segmented_order_statistics/plan.h"

namespace mgpu {

const Signature signature::segmented_order_statistics{
    .operands = {"x: key [n]", "begins: index [m]", "ends: index [m]", "ranks: index [k, m]", "count: index [1]?"},
    .results = {"values: =x [k, m]"},
    .tiles =
        [](TileSizes& sizes) {
          sizes["segmented_order_statistics"] = {cpu::kOrderStatisticsPart, kWarpSegment, kLongSegmentPart};
        },
};

SegmentedOrderStatisticsOperands::SegmentedOrderStatisticsOperands(const Call& call) {
  const Arguments in(call, signature::segmented_order_statistics);
  const Array& found = in.result("values");
  key_type = in["x"].dtype;
  length = Call::length(in["x"]);
  segments = Call::length(found);
  rank_count = found.dimensions[found.rank() - 2];
  rows = Call::batch(found, 2);
  const auto indices = [&](const char* name, int64_t each, int own_rank, int64_t& stride) {
    stride = call.row_stride(in[name], each, rows, name, own_rank);
    return call.index_vector(in[name], name);
  };
  begins = indices("begins", segments, 1, begins_stride);
  ends = indices("ends", segments, 1, ends_stride);
  ranks = indices("ranks", rank_count * segments, 2, ranks_stride);
  counts = call.live_counts(in["count"], rows);
  x = in["x"].data;
  x_stride = call.row_stride(in["x"], length, rows, "x");
  values = found.data;
}

}  // namespace mgpu
