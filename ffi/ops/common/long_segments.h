// Lists of the segments that are too long for a warp, for a kernel whose blocks take a part of one at a time.
#pragma once

#include "algorithm/segments.h"

namespace mgpu {

class Workspace;

constexpr int64_t kLongSegmentPart = 1 << 14;  // the items that a block takes

// A segment: its row, its number in the row, and its items.
struct RowSegment {
  int64_t row, number, begin, size;
};
struct LongPart {
  int segment;  // the place of the segment in its list, or -1
  int part;     // of its items
};

// Scratch memory of the lists. The parts of a segment are neighbours.
struct LongSegments {
  int64_t segments_room, parts_room;  // enough if no two segments share items
  unsigned* listed;                   // [2]: the numbers of long segments and of their parts
  RowSegment* segments;
  LongPart* parts;
  unsigned* finished;  // [segments_room]: blocks that are done

  // The lists of segments of more than `most` items.
  LongSegments(Workspace& workspace, const SegmentBounds& bounds, int64_t most);
};

}  // namespace mgpu
