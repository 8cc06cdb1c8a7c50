#include "ops/common/long_segments.h"

#include "runtime/workspace.h"

namespace mgpu {

LongSegments::LongSegments(Workspace& workspace, const SegmentBounds& bounds, int64_t most) {
  const int64_t items = bounds.rows * bounds.length;
  segments_room = bounds.length > most ? minimum(bounds.rows * bounds.segments, items / (most + 1)) : 0;
  parts_room = segments_room == 0 ? 0 : segments_room + items / kLongSegmentPart;
  listed = workspace.take<unsigned>(2);
  segments = workspace.take<RowSegment>(segments_room);
  parts = workspace.take<LongPart>(parts_room);
  finished = workspace.take<unsigned>(segments_room);
}

}  // namespace mgpu
