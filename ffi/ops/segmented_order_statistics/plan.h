// How CUDA finds the items at ranks of segments: which segments a warp takes, and scratch memory for the others.
#pragma once

#include "ops/segmented_order_statistics/operands.h"

namespace mgpu {

constexpr int kMaxSegmentRanks = 16;           // of a segment, as a block counts digits for all of them at once
constexpr int64_t kWarpSegment = 1 << 12;      // the most items that a warp takes: it reads them again and again
constexpr int64_t kLongSegmentPart = 1 << 14;  // the items of a longer segment that a block takes
constexpr int kSegmentDigitBits = 8;           // of the digits of their ranks, one pass each
constexpr int kSegmentDigits = 1 << kSegmentDigitBits;

// A segment that no warp takes: its row, its number in the row, and its items.
struct LongSegment {
  int64_t row, number, begin, size;
};
struct LongPart {
  int segment;  // the place of a LongSegment, or -1
  int part;     // of its items
};

// Scratch memory of the CUDA kernels, for long segments. All digits are of the ranks of their sought items.
struct SegmentedOrderStatisticsOperands::Scratch {
  int64_t segments, parts;  // how many there is room for: as many as can be, if no two segments share items
  unsigned* listed;         // [2]: the numbers of long segments and of their parts
  LongSegment* long_segments;
  LongPart* long_parts;
  uint64_t* prefixes;  // [segments, rank_count]: the known digits
  int64_t* before;     // [segments, rank_count]: how many items have lesser digits
  uint64_t* counts;    // [segments, rank_count, kSegmentDigits]: the numbers of items with each next digit
  unsigned* finished;  // [segments]: blocks that are done
};

}  // namespace mgpu
