#pragma once

#include "algorithm/load_balance.h"
#include "ops/common/read.h"

namespace mgpu {

// Sets the operands of `work`, whose sizes are set: `offsets` [.., objects], and the live count `count` [.., 1] or
// absent.
void read_work(const Call& call, const Arguments& in, WorkList& work, const char* offsets, const char* count);

// Tiles have `items` outputs per thread (CUDA).
WorkTiles take_work_tiles(Workspace& workspace, const WorkList& work, int items);

}  // namespace mgpu
