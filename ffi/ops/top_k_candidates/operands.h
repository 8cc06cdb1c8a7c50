// Finds a few items of each row, among which are the first k.
#pragma once

#include "algorithm/index_vector.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: x [.., n]; count [.., 1], which may be absent. Attributes: k; room, the most candidates of a row; largest,
// whether the order is descending. Results: values [.., room], positions [.., room] and found [.., 1]. A stable sort of
// the first `found` values begins with the row's first k items. Values and positions past these are undefined. `found`
// is at least k, or the row's live items if these are fewer.
struct TopKCandidatesOperands {
  DType key_type;
  bool largest;
  int64_t k;
  int64_t room;
  int64_t rows;
  int64_t length;
  LiveCounts counts;
  const void* x;
  void* values;
  IndexResult positions;
  IndexResult found;

  explicit TopKCandidatesOperands(const Call& call);

  MGPU_HOST_DEVICE int64_t live(int64_t row) const { return counts(row, length); }

  // These are for CUDA (plan.h).
  struct Parts;
  Parts parts() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
