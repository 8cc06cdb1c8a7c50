#include "ops/interval_reduce/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

IntervalReduceOperands::Scratch IntervalReduceOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  const int64_t tile = width == 1 ? IntervalTile{static_cast<int>(state_bytes)}.intervals()
                                  : maximum<int64_t>(kIntervalTileElements / maximum<int64_t>(width, 1), 1);
  const int64_t tiles = ceil_div(count, tile);
  return {tile, tiles, workspace.take<unsigned>(1), workspace.take<unsigned>(problems * tiles),
          workspace.take<char>(GroupLevels(rows()).total * width * state_bytes)};
}

int64_t workspace::interval_reduce(const Call& call) {
  const IntervalReduceOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

}  // namespace mgpu
