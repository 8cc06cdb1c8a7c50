#pragma once

#include "algorithm/load_balance.h"
#include "ops/common/read.h"

namespace mgpu {

// The sizes of `work` are set. `offsets` has shape [.., objects], and `count` [.., 1] or is absent.
void read_work(const Call& call, const Arguments& in, WorkList& work, const char* offsets, const char* count);

WorkTiles take_work_tiles(Workspace& workspace, const WorkList& work, int items);

}  // namespace mgpu
