// Each needle is looked up in its own segment.
#pragma once

#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;

// Operands: needles [.., n]; ids [.., n], the segment of each needle (if absent, all needles are looked up in the first
// segment); haystack [.., size], sorted within each segment; heads [.., m], where segments begin, and ends [.., m] or
// absent; needles_count [.., 1] and haystack_count [.., 1], which may be absent. Attributes: right, for side "right" of
// a sorted search; exact, only for side "left": a needle is then found only if its segment has an equal key. Result:
// positions [.., n] in the haystack, -1 for a needle that is not live, has no valid id, or is not found. Ids, heads,
// ends and positions have one type.
struct SegmentedSearchOperands {
  DType key_type;
  bool right;
  bool exact;
  SortedPair pair;     // the needles, which are in any order, and the haystack
  const void* ids;     // null if absent
  int64_t ids_stride;  // all strides are from problem to problem
  int64_t segments;
  const void* heads;
  int64_t heads_stride;
  const void* ends;  // null if a segment ends where the next begins
  int64_t ends_stride = 0;
  IndexResult positions;

  explicit SegmentedSearchOperands(const Call& call);

  template <typename Index>
  MGPU_HOST_DEVICE Range<int64_t> first_segment(int64_t problem) const {
    const int64_t live = pair.b.live(problem);
    const int64_t begin = clamp<int64_t>(static_cast<const Index*>(heads)[problem * heads_stride], 0, live);
    if (!ends) return {begin, live};
    return {begin, clamp<int64_t>(static_cast<const Index*>(ends)[problem * ends_stride], begin, live)};
  }

  template <typename Visit>
  void dispatch_index(Visit visit) const {
    positions.wide ? visit(int64_t{}) : visit(int32_t{});
  }
};

}  // namespace mgpu
