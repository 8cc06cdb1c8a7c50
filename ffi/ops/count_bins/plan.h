#pragma once

#include "ops/count_bins/operands.h"

namespace mgpu {

// With one counter per lane for each bin in shared memory, lanes never wait for each other. Every device has room for
// one counter of each of kMaxCountedBins bins, or for kMaxCountedEdges edges and a table to find bins.
constexpr int kCountBinsThreads = 512;
constexpr int kMaxCountedBins = 12288;
constexpr int64_t kMaxNumberedBins = (int64_t{1} << 31) - 1;
constexpr int kMaxCountedEdges = 2048;
constexpr int kEdgeSlots = 1024;         // the slots of the table to find bins
constexpr int64_t kCountPart = 1 << 13;  // the fewest items per block

}  // namespace mgpu
