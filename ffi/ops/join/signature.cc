#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/join/plan.h"

namespace mgpu {

const Signature signature::join{
    .operands = {"a: key [n]", "b: =a [m]", "a_count: index [1]?", "b_count: index [1]?"},
    .results = {"a_indices: index [size]", "b_indices: index [size]", "count: index []"},
    .attributes = {{"keep_a"}, {"keep_b"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["join"] = {cpu::kJoinTile};
          for (int width : kKeyWidths) sizes["join"].insert(join_tile_shape(width).tile());
        },
};

JoinOperands::JoinOperands(const Call& call) {
  const Arguments in(call, signature::join);
  const Array& a_out = in.result("a_indices");
  const int64_t rows = Call::batch(a_out, 1);
  keep_a = in.flag("keep_a");
  keep_b = in.flag("keep_b");
  key_type = in["a"].dtype;
  size = Call::length(a_out);
  pair = read_sorted_pair(call, in["a"], in["b"], in["a_count"], in["b_count"], rows);
  a_indices = call.index_result(a_out, rows * size, "a_indices");
  b_indices = call.index_result(in.result("b_indices"), rows * size, "b_indices");
  counts = call.index_result(in.result("count"), rows, "count");
}

}  // namespace mgpu
