// The call of merge as its kernels see it: the same on both platforms.
#pragma once

#include "dtype.h"
#include "operands/sorted_pair.h"

namespace mgpu {

struct Call;

// Operands: a [.., n_a], b [.., n_b], their payloads of the same shapes, a_count [.., 1], b_count [.., 1]; payloads and
// counts may be absent (empty). Attributes: descending, payload. Results: keys [.., n_a + n_b], and the payload.
struct MergeOperands {
  // One side's payload; rows as of its keys.
  struct Payload {
    const void* data = nullptr;  // null stands for indices into the concatenation of A and B
    int64_t stride = 0;
    int64_t stored = 0;
  };

  DType key_type;
  bool descending;
  SortedPair pair;
  Payload a_payload;
  Payload b_payload;
  int payload_width = 0;  // bytes; 0 without payload
  void* keys;
  void* payload = nullptr;

  explicit MergeOperands(const Call& call);
  MergeSplits layout(Workspace& workspace) const;
  bool gives_indices() const { return payload && !a_payload.data && !b_payload.data; }
};

}  // namespace mgpu
