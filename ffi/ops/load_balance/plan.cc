#include "ops/load_balance/plan.h"

#include "ops/load_balance/read_work.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

WorkTiles take_work_tiles(Workspace& workspace, const WorkList& work, int items) {
  const int64_t tile = int64_t{kWorkThreads} * items;
  WorkTiles tiles{tile, ceil_div(work.size, tile)};
  tiles.cells = workspace.take<int64_t>(work.problems * tiles.stride());
  return tiles;
}

WorkTiles LoadBalanceOperands::layout(Workspace& workspace) const {
  return take_work_tiles(workspace, work, kWordItems);
}

int64_t workspace::load_balance_search(const Call& call) { return layout_bytes(LoadBalanceOperands(call)); }

}  // namespace mgpu
