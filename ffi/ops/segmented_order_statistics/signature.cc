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
          for (int items = kLeastLaneItems; items <= kMostLaneItems; items *= 2) {
            for (int lanes = 1; lanes <= 32; lanes *= 2) sizes["segmented_order_statistics"].insert(lanes * items);
          }
        },
};

SegmentedOrderStatisticsOperands::SegmentedOrderStatisticsOperands(const Call& call) {
  const Arguments in(call, signature::segmented_order_statistics);
  const Array& found = in.result("values");
  key_type = in["x"].dtype;
  rank_count = found.dimensions[found.rank() - 2];
  static_cast<SegmentBounds&>(*this) = read_segment_bounds(call, in, Call::batch(found, 2), Call::length(in["x"]));
  ranks = call.index_vector(in["ranks"], "ranks");
  ranks_stride = call.row_stride(in["ranks"], rank_count * segments, rows, "ranks", 2);
  x = in["x"].data;
  x_stride = call.row_stride(in["x"], length, rows, "x");
  values = found.data;
}

}  // namespace mgpu
