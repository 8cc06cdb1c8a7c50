#pragma once

#include "algorithm/load_balance.h"
#include "ops/common/read.h"

namespace mgpu {

// `work` has problems, size and capacity. `offsets` names an operand [.., objects], `count` one [.., 1] or absent.
void read_work(const Call& call, const Arguments& in, WorkList& work, const char* offsets, const char* count);

WorkTiles take_work_tiles(Workspace& workspace, const WorkList& work, int items);

}  // namespace mgpu
