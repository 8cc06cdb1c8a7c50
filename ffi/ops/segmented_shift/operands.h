#pragma once

#include "ops/load_balance/operands.h"
#include "ops/move_rows/rows.h"

namespace mgpu {

// Operands: x [.., n, elements]; heads [.., m], the first of which is 0; by [.., 1]; count [.., 1] or absent;
// fill_value [.., 1]. Result: [.., n, elements]. Its row i is row i - by of x if both rows are before count and in one
// segment, else the fill value. Heads are int64 if int32 does not hold 2 n.
struct SegmentedShiftOperands {
  WorkList work;  // its objects are the segments: a load-balancing search finds that of each row
  Rows x;
  IndexVector by;
  int64_t by_stride;  // between the rows of the batch
  Fill fill;
  Rows out;

  explicit SegmentedShiftOperands(const Call& call);
  WorkTiles layout(Workspace& workspace) const;

  // The distance is clamped to just past all rows of a problem.
  MGPU_HOST_DEVICE int64_t distance(int64_t problem) const {
    return clamp<int64_t>(by[problem * by_stride], -work.size, work.size);
  }
};

}  // namespace mgpu
