#include "ops/common/read.h"
#include "ops/sample_top_p/plan.h"

namespace mgpu {

const Signature signature::sample_top_p{
    .operands = {"logits: key [..n]", "u: any [1]", "temperature: any [1]", "mass: any [1]", "share: any [1]"},
    .results = {"token: index [1]"},
    .tiles = [](TileSizes& sizes) { sizes["sample_top_p"] = {kSamplePart}; },
};

SampleTopPOperands::SampleTopPOperands(const Call& call) {
  const Arguments in(call, signature::sample_top_p);
  type = in["logits"].dtype;
  length = Call::length(in["logits"]);
  rows = Call::batch(in["logits"], 1);
  logits = in["logits"].data;
  const auto number = [&](const char* name) {
    call.expect(in[name].dtype == DType::f32, "expected parameters in float32");
    return RowNumber{static_cast<const float*>(in[name].data), call.row_stride(in[name], 1, rows, name)};
  };
  u = number("u");
  temperature = number("temperature");
  mass = number("mass");
  share = number("share");
  token = call.index_result(in.result("token"), rows, "token");
}

}  // namespace mgpu
