#pragma once

#include "algorithm/load_balance.h"
#include "runtime/call.h"

struct CUstream_st;

namespace mgpu::cuda {

void partition_work(const Call& call, CUstream_st* stream, const WorkList& work, const WorkTiles& tiles);

}  // namespace mgpu::cuda
