// The first items of each row in sorted order, and their positions.
#pragma once

#include "algorithm/index_vector.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: x [.., n]; count [.., 1], which may be absent. Attributes: k; largest, whether the order is descending.
// Results: values [.., k] and indices [.., k]. Past a row's live items, values are 0 and indices are -1.
struct TopKOperands {
  DType key_type;
  bool largest;
  int64_t k;
  int64_t rows;
  int64_t length;
  LiveCounts counts;
  const void* x;
  void* values;
  IndexResult indices;

  explicit TopKOperands(const Call& call);

  MGPU_HOST_DEVICE int64_t live(int64_t row) const { return counts(row, length); }

  // These are for CUDA (plan.h).
  struct Levels;
  Levels levels() const;
  struct Kept;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
