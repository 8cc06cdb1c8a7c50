#pragma once

#include "algorithm/balanced_path.h"
#include "algorithm/set_operation.h"
#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands; the last three are passed only if the payload is the values:
//   a [.., n_a], b [.., n_b]                 sorted keys
//   a_count [.., 1], b_count [.., 1]         the numbers of their live items; each may be absent (empty)
//   fill [.., 1]                             the key of slots past the result's count
//   a_values [.., n_a], b_values [.., n_b]   b_values may be empty if all results are items of A
//   values_fill [.., 1]                      the payload of slots past the result's count
// Attributes: kind; duplicates, whether a key may occur twice in A or in B; payload. Results: keys [.., size]; the
// payload [.., size], if there is one; count [..]. A payload of indices numbers A's items first, then B's items. Past
// the count, it is -1.
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
  int payload_width = 0;  // the bytes of a value; 0 without payload
  bool gives_indices = false;
  Rows a_values;  // null for a payload of indices
  Rows b_values;
  Rows values_fill;
  void* keys;
  void* payload = nullptr;
  IndexResult counts;

  explicit SetsOperands(const Call& call);
  // On CUDA, a row's last tile stores the row's count, so an empty row has a tile too.
  int64_t row_tiles(int64_t tile) const { return maximum<int64_t>(1, ceil_div(pair.row_slots(), tile)); }

  // These are for CUDA (plan.h).
  int64_t cuda_row_tiles() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
