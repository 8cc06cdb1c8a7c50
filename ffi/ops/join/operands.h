// The call of join as its kernels see it: it finds the pairs of equal keys of two sorted vectors.
#pragma once

#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: a [.., n_a], b [.., n_b], and the numbers of their live items, a_count [.., 1], b_count [.., 1], which may
// be absent (empty). Attributes: keep_a and keep_b, whether an item of A or of B without a partner makes an output row
// of its own. Results: a_indices [.., size] and b_indices [.., size], the items of each pair, -1 for a missing partner,
// and both -1 past the count; count [..], which may exceed the size.
struct JoinOperands {
  DType key_type;
  SortedPair pair;
  bool keep_a;
  bool keep_b;
  int64_t size;
  IndexResult a_indices;
  IndexResult b_indices;
  IndexResult counts;

  explicit JoinOperands(const Call& call);

  // If the count does not fit an int32 result, the largest int32 stands for it.
  MGPU_HOST_DEVICE void set_count(int64_t row, int64_t count) const {
    constexpr int64_t kLargest = 2147483647;
    counts.set(row, counts.wide ? count : minimum(count, kLargest));
  }

  // The plan on CUDA (plan.h).
  int64_t row_tiles() const;
  int64_t tiles() const { return pair.rows * row_tiles(); }
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
