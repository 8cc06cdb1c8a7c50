// A list of the segments that are too long for a warp, and a list of their parts, of which blocks take one at a time.
#pragma once

#include "algorithm/segments.h"

namespace mgpu {

class Workspace;

constexpr int64_t kLongSegmentPart = 1 << 14;

struct RowSegment {
  int64_t row, number, begin, size;
};
struct LongPart {
  int segment;  // the place of the segment in its list; -1 if the list was full
  int part;     // the number of this part in the segment
};

// Scratch memory. The parts of a segment are neighbours.
struct LongSegments {
  int64_t segments_room, parts_room;  // enough if no two segments share items
  unsigned* listed;                   // [2]: the numbers of long segments and of their parts
  RowSegment* segments;
  LongPart* parts;
  unsigned* finished;  // [segments_room]: how many parts of each segment are done

  LongSegments(Workspace& workspace, const SegmentBounds& bounds, int64_t most);
};

}  // namespace mgpu
