// Merges two sorted vectors, or pairs of sorted runs of one vector.
#pragma once

#include "algorithm/neighbour_runs.h"
#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;
struct RunSplits;

// Operands, of which all but a may be absent (empty):
//   a [.., n_a], b [.., n_b]             sorted keys
//   a_values, b_values                   their payloads, of the same shapes
//   a_count [.., 1], b_count [.., 1]     the numbers of their live items
//   run_ends [.., runs]                  the ends of A's runs, if runs of A are merged with each other
// Attributes: descending, payload, size. Results: keys [.., size], and the payload; size is n_a + n_b. With run_ends, A
// consists of consecutive runs that end at these positions, the first beginning at 0; all of B and the counts are
// absent. Runs 0 and 1 are merged into their own slots of the result, and so are runs 2 and 3, and so on. The results
// are then the first `size` slots of A, in which all runs end; slots after the last run get 0 (indices: -1).
struct MergeOperands {
  struct Payload {
    const void* data = nullptr;  // null means indices into the concatenation of A and B
    int64_t stride = 0;
    int64_t stored = 0;
  };

  DType key_type;
  bool descending;
  SortedPair pair;  // for runs, both sides are all of A, and B has no slots of its own
  NeighbourRuns runs;
  Payload a_payload;
  Payload b_payload;
  int payload_width = 0;  // the bytes of a value; 0 without payload
  int64_t b_index;        // if indices are the payload, the index of B's first item; A's first item has index 0
  void* keys;
  void* payload = nullptr;

  explicit MergeOperands(const Call& call);
  RunSplits layout(Workspace& workspace) const;  // scratch memory on CUDA
  // A row may need so many additional tiles, because tiles also end where pairs do.
  int64_t pairs_beyond_first() const { return runs.given() ? runs.pairs() - 1 : 0; }
  bool gives_indices() const { return payload && !a_payload.data && !b_payload.data; }
};

}  // namespace mgpu
