#include "ops/merge/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

RunSplits MergeOperands::layout(Workspace& workspace) const {
  const int64_t short_tiles = pairs_beyond_first();
  const MergeSplits splits = MergeSplits::layout(pair, workspace, short_tiles);
  return {splits, runs.given() ? workspace.take<RunTile>(MergeSplits::max_tiles(pair, short_tiles)) : nullptr};
}

int64_t workspace::merge(const Call& call) { return layout_bytes(MergeOperands(call)); }

}  // namespace mgpu
