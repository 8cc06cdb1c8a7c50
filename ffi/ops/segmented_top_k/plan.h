// How many lanes take a segment, and scratch memory for long segments.
#pragma once

#include "ops/common/long_segments.h"
#include "ops/segmented_top_k/operands.h"

namespace mgpu {

constexpr int kSegmentedTopKMaxK = 32;  // the most results that the kernels find: CUDA_MAX_SEGMENT_K in ranks.py
constexpr int kTopKSteps = 8;           // each result takes a step; to find more results, items are sorted
// A group has as few lanes as leave each at most kTopKMeanItems items of a segment of mean length, but no more than a
// warp.
constexpr int kTopKLanes[] = {1, 2, 4, 8, 16, 32};
constexpr int kTopKLaneItems = 16;
constexpr int kTopKMeanItems = 8;
constexpr int64_t kTopKWarpSegment = 1 << 10;  // the most items that a warp takes; blocks take parts of longer segments

struct SegmentedTopKOperands::Scratch {
  LongSegments list;
  uint32_t* kept;  // [list.parts_room, k]: the positions of each part's first items in the part
};

}  // namespace mgpu
