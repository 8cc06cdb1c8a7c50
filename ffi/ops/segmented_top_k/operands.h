// Finds the first items of each segment in sorted order, and their positions.
#pragma once

#include "algorithm/segments.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: x [.., n]; begins [.., m] and ends [.., m], the segments; count [.., 1] or absent. Attributes: k; largest,
// for descending order. Results: values [.., m, k] and indices [.., m, k], which count from the start of the row. If a
// segment has fewer than k items, the other values are 0, and the other indices -1.
struct SegmentedTopKOperands : SegmentBounds {
  DType key_type;
  bool largest;
  int64_t k;
  const void* x;
  int64_t x_stride;  // from row to row
  void* values;
  IndexResult indices;

  explicit SegmentedTopKOperands(const Call& call);

  MGPU_HOST_DEVICE int64_t place(int64_t row, int64_t number) const { return (row * segments + number) * k; }

  // These are for CUDA (plan.h).
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
