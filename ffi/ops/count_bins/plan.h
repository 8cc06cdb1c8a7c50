// How CUDA counts in bins.
#pragma once

#include "ops/count_bins/operands.h"

namespace mgpu {

// Blocks count in shared memory. With one counter per lane for each bin, lanes never wait for each other, for any
// items. This many bins have one counter each on every device, which also has room for their edges and a table to find
// them.
constexpr int kCountBinsThreads = 512;
constexpr int kMostCountedBins = 12288;
constexpr int kMostCountedEdges = 2048;
constexpr int kEdgeSlots = 1024;         // of the table: more take each block longer to fill
constexpr int64_t kCountPart = 1 << 13;  // items of a block, or more

}  // namespace mgpu
