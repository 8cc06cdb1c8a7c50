#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/top_k/plan.h"

namespace mgpu {

const Signature signature::top_k{
    .operands = {"x: key [..n]", "count: index [1]?"},
    .results = {"values: =x [k]", "indices: index [k]"},
    .attributes = {{"k", &kNumber}, {"largest"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["top_k"] = {cpu::kTopKPart};
          for (int width : kKeyWidths) {
            for (int threads : {kTopKThreads, kTopKManyThreads})
              sizes["top_k"].insert(top_k_shape(width, threads).tile());
          }
        },
};

TopKOperands::TopKOperands(const Call& call) {
  const Arguments in(call, signature::top_k);
  const Array& given = in["x"];
  const Array& found = in.result("values");
  key_type = given.dtype;
  largest = in.flag("largest");
  k = in.attribute("k");
  length = Call::length(given);
  rows = Call::batch(given, 1);
  counts = call.live_counts(in["count"], rows);
  x = given.data;
  values = found.data;
  indices = call.index_result(in.result("indices"), rows * k, "indices");
}

}  // namespace mgpu
