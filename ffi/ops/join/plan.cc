#include "ops/join/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t JoinOperands::row_tiles() const {
  return maximum<int64_t>(1, ceil_div<int64_t>(pair.row_slots(), join_tile_shape(byte_width(key_type)).tile()));
}

JoinOperands::Scratch JoinOperands::layout(Workspace& workspace) const {
  const int64_t words = tiles();
  Scratch scratch;
  scratch.edges = workspace.take<JoinEdge>(pair.rows * (row_tiles() + 1));
  scratch.heavy = workspace.take<JoinHeavyTile>(minimum(tiles(), pair.rows * (size / kJoinHeavy + 1)));
  scratch.paired = workspace.take<int64_t>(pair.rows);
  scratch.unmatched = workspace.take<int64_t>(pair.rows);
  const int64_t unmatched_bytes = keep_b ? pair.rows * pair.b.length * (b_indices.wide ? 8 : 4) : 0;
  scratch.unmatched_items = {workspace.take<char>(unmatched_bytes), b_indices.wide};
  scratch.zeroed_words = 2 + words + (keep_b ? words : 0);
  scratch.zeroed = workspace.take<uint64_t>(scratch.zeroed_words);
  scratch.heavy_state = scratch.zeroed + 1;
  scratch.row_words = scratch.zeroed + 2;
  scratch.unmatched_words = scratch.row_words + words;
  return scratch;
}

int64_t workspace::join(const Call& call) { return layout_bytes(JoinOperands(call)); }

}  // namespace mgpu
