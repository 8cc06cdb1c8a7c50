#include "ops/run_heads/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t RunHeadsOperands::cuda_row_tiles() const { return row_tiles(run_heads_shape(byte_width(key_type)).tile()); }

RunHeadsOperands::Scratch RunHeadsOperands::layout(Workspace& workspace) const {
  const int tile = run_heads_shape(byte_width(key_type)).tile();
  const int64_t tiles = rows.rows * row_tiles(tile);
  auto* const bits = workspace.take<unsigned>(tiles * tile / 32);
  auto* const keys = workspace.take<std::byte>(tiles * kept_heads(tile) * byte_width(key_type));
  return {bits, keys, take_tile_counts(workspace, rows.rows, row_tiles(tile))};
}

int64_t workspace::run_heads(const Call& call) { return layout_bytes(RunHeadsOperands(call)); }

}  // namespace mgpu
