#include "operands/top_k.h"

#include "operands/read.h"

namespace mgpu {

const Signature signature::top_k{
    .operands = {"x", "count"},
    .results = {"values", "indices"},
    .attributes = {{"k", &kNumber}, {"largest"}},
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
  call.expect(k >= 0 && Call::length(found) == k && found.size() == rows * k, "values: expected k items a row");
  call.expect(found.dtype == key_type, "values: expected the type of x");
  indices = call.index_result(in.result("indices"), rows * k, "indices");
}

}  // namespace mgpu
