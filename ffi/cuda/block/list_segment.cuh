// Lists segments that are too long for a warp.
#pragma once

#include "cuda/block/shuffle.cuh"
#include "ops/common/long_segments.h"

namespace mgpu::cuda {

// Returns the segment's place in the list, or -1 if a list is full, which happens only if segments overlap. All lanes
// of a warp call this.
__device__ inline int list_segment(const LongSegments& list, const RowSegment& segment) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto parts = static_cast<int>(ceil_div(segment.size, kLongSegmentPart));
  unsigned place = 0, first = 0;
  if (lane == 0) {
    place = atomicAdd(list.listed, 1u);
    if (place < list.segments_room) first = atomicAdd(list.listed + 1, static_cast<unsigned>(parts));
  }
  place = shuffle(place, 0);
  first = shuffle(first, 0);
  if (place >= list.segments_room) return -1;
  const bool has_room = first + int64_t{parts} <= list.parts_room;
  const auto end = static_cast<int>(minimum<int64_t>(parts, list.parts_room - first));
  for (int part = lane; part < end; part += kWarp) {
    list.parts[first + part] = {has_room ? static_cast<int>(place) : -1, part};
  }
  if (!has_room) return -1;
  if (lane == 0) {
    list.segments[place] = segment;
    list.finished[place] = 0;
  }
  return static_cast<int>(place);
}

}  // namespace mgpu::cuda
