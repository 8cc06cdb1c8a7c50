#include "ops/common/read.h"
#include "ops/segmented_softmax/plan.h"

namespace mgpu {

const Signature signature::segmented_softmax{
    .operands = {"x: any [..n]", "heads: index [m]", "count: index [1]?"},
    .results = {"result: =x [n]"},
    .attributes = {{"log"}},
    .tiles = [](TileSizes& sizes) { sizes["segmented_softmax"] = {softmax_shape(4).tile(), softmax_shape(8).tile()}; },
};

SegmentedSoftmaxOperands::SegmentedSoftmaxOperands(const Call& call) {
  const Arguments in(call, signature::segmented_softmax);
  const Array& elements = in["x"];
  const Array& heads = in["heads"];
  dtype = elements.dtype;
  x = elements.data;
  result = in.result("result").data;
  log = in.flag("log");
  segments.length = Call::length(elements);
  segments.rows = Call::batch(elements, 1);
  segments.heads_count = Call::length(heads);
  segments.heads = call.index_vector(heads, "heads");
  segments.heads_stride = call.row_stride(heads, segments.heads_count, segments.rows, "heads");
  segments.counts = call.live_counts(in["count"], segments.rows);
}

}  // namespace mgpu
