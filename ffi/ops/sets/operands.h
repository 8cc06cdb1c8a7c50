// The call of the set operations as their kernels see it: the same on both platforms.
#pragma once

#include "algorithm/balanced_path.h"
#include "algorithm/set_operation.h"
#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: a [.., n_a], b [.., n_b], a_count [.., 1], b_count [.., 1], fill [.., 1], a_values [.., n_a], b_values [..,
// n_b], values_fill [.., 1]; counts and values may be absent (empty). Attributes: kind; duplicates, whether a key may
// occur twice in A or in B; payload. Results: keys [.., size], the payload [.., size] if there is one, count [..]. A
// payload of indices numbers A's items first, then B's items; past the count, it is -1.
struct SetsOperands {
  // The rows of an array; null if it is absent.
  struct Rows {
    const void* data = nullptr;
    int64_t stride = 0;
  };

  DType key_type;
  SetRule rule;
  bool duplicates;
  SortedPair pair;
  int64_t size;
  Rows fill;
  int payload_width = 0;  // bytes; 0 without payload
  bool gives_indices = false;
  Rows a_values;  // null for a payload of indices
  Rows b_values;
  Rows values_fill;
  void* keys;
  void* payload = nullptr;
  IndexResult counts;

  explicit SetsOperands(const Call& call);
  // A row has at least one tile, which stores its count.
  int64_t row_tiles(int64_t tile) const { return maximum<int64_t>(1, ceil_div(pair.row_slots(), tile)); }

  // The plan on CUDA (plan.h).
  int64_t cuda_row_tiles() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
