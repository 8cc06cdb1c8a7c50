#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/move_rows/read_rows.h"
#include "ops/select/plan.h"

namespace mgpu {

const Signature signature::select{
    .operands = {"x: any [n, width] if indices=0", "keep: bool [n]", "count: index [1]?",
                 "fill_value: =items [1] if indices=0"},
    .results = {"items: any [*]", "kept: index []"},
    .attributes = {{"indices"}, {"partition"}},
    .tiles = [](TileSizes& sizes) { sizes["select"] = {cpu::kSelectTile, kSelectTile}; },
};

SelectOperands::SelectOperands(const Call& call) {
  const Arguments in(call, signature::select);
  gives_indices = in.flag("indices");
  partition = in.flag("partition");
  const Array& result = in.result("items");
  length = Call::length(in["keep"]);
  rows = Call::batch(result, gives_indices ? 1 : 2);
  keep = in["keep"].as<uint8_t>();
  keep_stride = call.row_stride(in["keep"], length, rows, "keep");
  counts = call.live_counts(in["count"], rows);
  kept = call.index_result(in.result("kept"), rows, "kept");
  x = out = Rows{};
  fill = Fill{};
  if (gives_indices) {
    size = Call::length(result);
    indices = call.index_result(result, rows * size, "items");
  } else {
    out = read_rows(call, result, rows, "items");
    x = read_rows(call, in["x"], rows, "x");
    fill = read_fill(call, in["fill_value"], rows);
    size = out.count;
    call.expect(in["x"].dtype == result.dtype && x.row_bytes == out.row_bytes, "items: expected rows of x");
  }
  call.expect(!partition || size == length, "items: expected as many as there are in keep");
}

}  // namespace mgpu
