#include "ops/common/read.h"
#include "ops/top_k_candidates/plan.h"

namespace mgpu {

const Signature signature::top_k_candidates{
    .operands = {"x: key [..n]", "count: index [1]?"},
    .results = {"values: =x [room]", "positions: index [room]", "found: index [1]"},
    .attributes = {{"k", &kNumber}, {"room", &kNumber}, {"largest"}},
    .tiles = [](TileSizes& sizes) { sizes["top_k_candidates"] = {kCandidateGroup, kCandidatePart, 2048}; },
};

TopKCandidatesOperands::TopKCandidatesOperands(const Call& call) {
  const Arguments in(call, signature::top_k_candidates);
  key_type = in["x"].dtype;
  largest = in.flag("largest");
  k = in.attribute("k");
  room = in.attribute("room");
  length = Call::length(in["x"]);
  rows = Call::batch(in["x"], 1);
  counts = call.live_counts(in["count"], rows);
  x = in["x"].data;
  values = in.result("values").data;
  positions = call.index_result(in.result("positions"), rows * room, "positions");
  found = call.index_result(in.result("found"), rows, "found");
  call.expect(room >= minimum(k, length), "room: expected at least k");
}

}  // namespace mgpu
