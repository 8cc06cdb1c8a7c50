#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/segmented_top_k/plan.h"

namespace mgpu {

const Signature signature::segmented_top_k{
    .operands = {"x: key [n]", "begins: index [m]", "ends: index [m]", "count: index [1]?"},
    .results = {"values: =x [m, k]", "indices: index [m, k]"},
    .attributes = {{"k", &kNumber}, {"largest"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["segmented_top_k"] = {cpu::kTopKPart, kTopKWarpSegment, kLongSegmentPart};
          for (int lanes : kTopKLanes) sizes["segmented_top_k"].insert(lanes * kTopKLaneItems);
        },
};

SegmentedTopKOperands::SegmentedTopKOperands(const Call& call) {
  const Arguments in(call, signature::segmented_top_k);
  const Array& found = in.result("values");
  static_cast<SegmentBounds&>(*this) = read_segment_bounds(call, in, Call::batch(found, 2), Call::length(in["x"]));
  key_type = in["x"].dtype;
  largest = in.flag("largest");
  k = in.attribute("k");
  x = in["x"].data;
  x_stride = call.row_stride(in["x"], length, rows, "x");
  values = found.data;
  indices = call.index_result(in.result("indices"), rows * segments * k, "indices");
}

}  // namespace mgpu
