#include "ops/select/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

SelectOperands::Scratch SelectOperands::layout(Workspace& workspace) const {
  const int64_t tiles = row_tiles(kSelectTile);
  unsigned* const bits = workspace.take<unsigned>(rows * tiles * kSelectTile / 32);
  return {bits, take_tile_counts(workspace, rows, tiles)};
}

int64_t workspace::select(const Call& call) { return layout_bytes(SelectOperands(call)); }

}  // namespace mgpu
