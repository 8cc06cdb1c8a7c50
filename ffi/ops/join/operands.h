// Finds the pairs of equal keys of two sorted vectors.
#pragma once

#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: a [.., n_a] and b [.., n_b], sorted keys; a_count [.., 1] and b_count [.., 1], the numbers of their live
// items, or absent (empty). Attributes: keep_a and keep_b, whether an item of A or of B without a partner makes an
// output row of its own. Results: a_indices [.., size] and b_indices [.., size], the items of each pair, with -1 for a
// missing partner, and with both -1 past the count; count [..], the number of output rows, which may exceed the size.
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

  // These are for CUDA (plan.h).
  int64_t row_tiles() const;
  int64_t tiles() const { return pair.rows * row_tiles(); }
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
