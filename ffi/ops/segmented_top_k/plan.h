// How CUDA finds the first items of segments: how many lanes have a segment, and scratch memory for long ones.
#pragma once

#include "ops/common/long_segments.h"
#include "ops/segmented_top_k/operands.h"

namespace mgpu {

constexpr int kSegmentedTopKMaxK = 32;  // each result takes a step, so that a sort takes less time for a large k
// A group of lanes has a segment in registers. Groups are so large that each lane has up to kTopKMeanItems items of a
// mean segment. If the segment is longer than a group holds, the warp reads it for each result.
constexpr int kTopKLanes[] = {1, 2, 4, 8, 16, 32};
constexpr int kTopKLaneItems = 16;
constexpr int kTopKMeanItems = 8;
constexpr int64_t kTopKWarpSegment = 1 << 10;  // the most items that a warp takes; blocks take parts of longer segments

// Scratch memory of the CUDA kernels.
struct SegmentedTopKOperands::Scratch {
  LongSegments list;
  uint32_t* kept;  // [list.parts_room, k]: positions in a part of its first items
};

}  // namespace mgpu
