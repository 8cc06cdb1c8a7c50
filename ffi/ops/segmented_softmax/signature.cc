#include "ops/common/read.h"
#include "ops/segmented_softmax/plan.h"

namespace mgpu {

constexpr Enumeration kRules{"softmax_rule",
                             {"softmax", "log_softmax", "softmax_tangent", "log_tangent", "log_cotangent"}};

const Signature signature::segmented_softmax{
    .operands = {"x: any [..n, width]", "t: =x [..n, width]?", "heads: index [m]", "count: index [1]?"},
    .results = {"result: =x [n, width]"},
    .attributes = {{"rule", &kRules}},
    .tiles =
        [](TileSizes& sizes) {
          for (int bytes : {2, 4, 8}) {
            for (int width : {1, 2, 3, 4, 8, 16, 32}) {
              sizes["segmented_softmax"].insert(SoftmaxTiling(INT32_MAX, width, bytes).tile_rows);
            }
          }
        },
};

SegmentedSoftmaxOperands::SegmentedSoftmaxOperands(const Call& call) {
  const Arguments in(call, signature::segmented_softmax);
  const Array& elements = in["x"];
  const Array& heads = in["heads"];
  dtype = elements.dtype;
  x = elements.data;
  result = in.result("result").data;
  rule = static_cast<SoftmaxRule>(in.attribute("rule"));
  t = in["t"].data;
  const bool has_tangents = Call::length(in["t"]) > 0;
  call.expect(Call::length(elements) == 0 || has_tangents == (rule >= SoftmaxRule::kSoftmaxTangent),
              "t: expected tangents where the rule has them");
  width = Call::length(elements);
  segments.length = elements.dimensions[elements.rank() - 2];
  segments.rows = Call::batch(elements, 2);
  segments.heads_count = Call::length(heads);
  segments.heads = call.index_vector(heads, "heads");
  segments.heads_stride = call.row_stride(heads, segments.heads_count, segments.rows, "heads");
  segments.counts = call.live_counts(in["count"], segments.rows);
}

}  // namespace mgpu
