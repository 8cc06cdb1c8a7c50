#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/count_bins/plan.h"

namespace mgpu {

const Signature signature::count_bins{
    .operands = {"x: any [n]", "edges: =x [edges]?"},
    .results = {"counts: index [bins]"},
    .attributes = {{"bins", &kNumber}},
    .tiles = [](TileSizes& sizes) { sizes["count_bins"] = {cpu::kCountBinsPart, kCountPart}; },
};

CountBinsOperands::CountBinsOperands(const Call& call) {
  const Arguments in(call, signature::count_bins);
  const Array& given_edges = in["edges"];
  const Array& result = in.result("counts");
  item_type = in["x"].dtype;
  length = Call::length(in["x"]);
  bins = Call::length(result);
  rows = Call::batch(result, 1);
  x = in["x"].data;
  x_stride = call.row_stride(in["x"], length, rows, "x");
  edge_count = Call::length(given_edges);
  has_edges = edge_count > 0;
  edges = given_edges.data;
  edges_stride = 0;
  if (has_edges) {
    call.expect(edge_count == bins + 1, "edges: expected one more than there are bins");
    edges_stride = call.row_stride(given_edges, edge_count, rows, "edges");
  } else {
    call.index_vector(in["x"], "x");
  }
  counts = call.index_result(result, rows * bins, "counts");
}

int64_t workspace::count_bins(const Call&) { return 0; }

}  // namespace mgpu
