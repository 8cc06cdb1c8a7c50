// How CUDA finds the items at ranks of segments: which segments a warp takes, and scratch memory for the others.
#pragma once

#include "ops/common/long_segments.h"
#include "ops/segmented_order_statistics/operands.h"

namespace mgpu {

constexpr int kMaxSegmentRanks = 16;       // of a segment, as a block counts digits for all of them at once
constexpr int64_t kWarpSegment = 1 << 12;  // the most items that a warp takes: it reads them again and again
constexpr int kSegmentDigitBits = 8;       // of the digits of a longer segment's ranks, one pass each
constexpr int kSegmentDigits = 1 << kSegmentDigitBits;

// Scratch memory of the CUDA kernels, for long segments. All digits are of the ranks of their sought items.
struct SegmentedOrderStatisticsOperands::Scratch {
  LongSegments list;
  uint64_t* prefixes;  // [segments, rank_count]: the known digits
  int64_t* before;     // [segments, rank_count]: how many items have lesser digits
  uint64_t* counts;    // [segments, rank_count, kSegmentDigits]: the numbers of items with each next digit
};

}  // namespace mgpu
