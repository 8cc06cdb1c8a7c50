#pragma once

#include "ops/count_bins/operands.h"

namespace mgpu {

// Every device has room for one counter of each of kMaxCountedBins bins,
// or for kMaxCountedEdges edges and a table to find bins.
constexpr int kCountBinsThreads = 512;
constexpr int kMaxCountedBins = 12288;
constexpr int64_t kMaxNumberedBins = (int64_t{1} << 31) - 1;
constexpr int kMaxCountedEdges = 2048;
constexpr int kEdgeSlots = 1024;         // the slots of the table to find bins
constexpr int64_t kCountPart = 1 << 13;  // about the fewest items of one of several parts

}  // namespace mgpu
