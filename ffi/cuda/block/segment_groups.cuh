// Short segments in the registers of groups of lanes: each group of a warp has one segment.
#pragma once

#include "cuda/block/shuffle.cuh"
#include "ops/common/long_segments.h"

namespace mgpu::cuda {

// The logarithm of a group's lanes: the fewest that leave each at most `items` items of a segment of mean length, but
// no more than a warp.
MGPU_HOST_DEVICE int log_group_lanes(const SegmentBounds& bounds, int items) {
  int log_lanes = 0;
  while ((1 << log_lanes) < kWarp && bounds.length > (bounds.segments * items) << log_lanes) ++log_lanes;
  return log_lanes;
}

// A group has room for kItems items per lane. Calls visit(segment, lanes, exists) once for
// all groups of a warp, if any segment fits its group; for a group whose segment does not fit,
// the segment is empty and `exists` is false. Then calls visit with each segment that does
// not fit its group, which the whole warp takes. All lanes of the warp call this function.
template <int kItems, typename Visit>
__device__ __forceinline__ void for_each_segment(const RowSegment& segment, bool exists, int lanes, Visit visit) {
  const bool is_longer = segment.size > lanes * kItems;
  unsigned longer = __ballot_sync(~0u, is_longer && threadIdx.x % lanes == 0);
  RowSegment own = segment;
  if (is_longer) own.size = 0;
  exists = exists && !is_longer;
  bool by_groups = __any_sync(~0u, exists);
#pragma unroll 1
  for (; by_groups || longer != 0; by_groups = false) {
    if (!by_groups) {
      own = shuffle(segment, __ffs(longer) - 1);
      longer &= longer - 1;
      lanes = kWarp;
      exists = true;
    }
    visit(own, lanes, exists);
  }
}

// Lane l loads the items at l, l + lanes, and so on. Places past the last item read the
// last one, so that no load is under a condition. An empty segment must begin at an item.
template <int kItems, typename Word>
__device__ __forceinline__ void load_group(const Word* items, int size, int lanes, Word (&own)[kItems]) {
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), last = maximum(size, 1) - 1 - lane;
#pragma unroll
  for (int i = 0; i < kItems; ++i) own[i] = (items + lane)[minimum(i * lanes, last)];
}

// The place in shared memory of a group's sorted value number `i`, if each lane of the warp stored its value j at j *
// kWarp + lane (sort_groups).
template <int kItems>
__device__ __forceinline__ int sorted_place(int i, int lanes) {
  const int group = static_cast<int>(threadIdx.x % kWarp) & -lanes;
  return i % kItems * kWarp + group + i / kItems;
}

}  // namespace mgpu::cuda
