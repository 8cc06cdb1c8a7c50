// Which segments a warp takes, and scratch memory for the longer ones.
#pragma once

#include "ops/common/long_segments.h"
#include "ops/segmented_order_statistics/operands.h"

namespace mgpu {

constexpr int kMaxSegmentRanks = 16;  // a block counts digits for all of them at once
// A group has as few lanes as leave each at most mean_lane_items
// items of a segment of mean length, but no more than a warp.
constexpr int kLeastLaneItems = 8, kMostLaneItems = 32;
constexpr int mean_lane_items(int width) { return width == 8 ? 8 : 16; }
constexpr int64_t kWarpSegment = 1 << 12;  // the most items that a warp takes
constexpr int kSegmentDigitBits = 8;       // each pass over a longer segment finds one digit
constexpr int kSegmentDigits = 1 << kSegmentDigitBits;

// Scratch memory for long segments. Digits are those of the words by which keys are ordered (kernels.cuh).
struct SegmentedOrderStatisticsOperands::Scratch {
  LongSegments list;
  uint64_t* prefixes;  // [segments, rank_count]: the known digits
  int64_t* before;     // [segments, rank_count]: how many items have smaller digits
  uint64_t* counts;    // [segments, rank_count, kSegmentDigits]: the numbers of items with each next digit
};

}  // namespace mgpu
