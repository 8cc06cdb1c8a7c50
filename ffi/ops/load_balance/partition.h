// The partition that every kernel over a load-balancing search starts with.
#pragma once

#include "algorithm/load_balance.h"
#include "runtime/call.h"

struct CUstream_st;

namespace mgpu::cuda {

// Finds tiles.cells. Runs before the kernels that use TileWork.
void partition_work(const Call& call, CUstream_st* stream, const WorkList& work, const WorkTiles& tiles);

}  // namespace mgpu::cuda
