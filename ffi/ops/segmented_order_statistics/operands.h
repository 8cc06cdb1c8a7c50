// Finds the items at given ranks, which are positions in the sorted order of each segment.
#pragma once

#include "algorithm/segments.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: x [.., n]; begins [.., m] and ends [.., m], the segments; ranks [.., k, m], for each segment k positions in
// its sorted order; count [.., 1] or absent. Result: values [.., k, m]. A rank past the items of a segment gives the
// last one; the values of an empty segment are unspecified. All NaNs are equal, so a NaN may have the bits of another
// NaN. Zeros of either sign are equal, and the result is +0.
struct SegmentedOrderStatisticsOperands : SegmentBounds {
  DType key_type;
  int64_t rank_count;
  IndexVector ranks;
  int64_t ranks_stride, x_stride;  // from row to row
  const void* x;
  void* values;

  explicit SegmentedOrderStatisticsOperands(const Call& call);

  // The segment is not empty.
  MGPU_HOST_DEVICE int64_t rank(int64_t row, int64_t k, int64_t i, int64_t size) const {
    return clamp<int64_t>(ranks[row * ranks_stride + k * segments + i], 0, size - 1);
  }
  MGPU_HOST_DEVICE int64_t place(int64_t row, int64_t k, int64_t i) const {
    return (row * rank_count + k) * segments + i;
  }

  // These are for CUDA (plan.h).
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
