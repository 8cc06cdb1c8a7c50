#include "ops/tile_counts/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

TileCounts take_tile_counts(Workspace& workspace, int64_t rows, int64_t row_tiles) {
  const int64_t row_groups = ceil_div<int64_t>(row_tiles, kTileGroup);
  int* const counts = workspace.take<int>(rows * row_groups * kTileGroup);
  return {rows, row_groups, counts, workspace.take<int64_t>(rows * row_groups)};
}

}  // namespace mgpu
