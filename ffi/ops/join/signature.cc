#include "cpu/policy.h"
#include "cuda/policy.h"
#include "ops/common/read.h"
#include "ops/join/operands.h"

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

JoinOperands::Scratch JoinOperands::layout(Workspace& workspace) const {
  const int64_t words = tiles();
  Scratch scratch;
  scratch.edges = workspace.take<JoinEdge>(pair.rows * (row_tiles() + 1));
  scratch.heavy = workspace.take<JoinHeavyTile>(minimum(tiles(), pair.rows * (size / kJoinHeavy + 1)));
  scratch.paired = workspace.take<int64_t>(pair.rows);
  scratch.alone = workspace.take<int64_t>(pair.rows);
  const int64_t alone_bytes = keep_b ? pair.rows * pair.b.length * (b_indices.wide ? 8 : 4) : 0;
  scratch.alone_items = {workspace.take<char>(alone_bytes), b_indices.wide};
  scratch.zeroed_words = 2 + words + (keep_b ? words : 0);
  scratch.zeroed = workspace.take<uint64_t>(scratch.zeroed_words);
  scratch.heavy_state = scratch.zeroed + 1;
  scratch.row_words = scratch.zeroed + 2;
  scratch.alone_words = scratch.row_words + words;
  return scratch;
}

int64_t workspace::join(const Call& call) { return layout_bytes(JoinOperands(call)); }

}  // namespace mgpu
