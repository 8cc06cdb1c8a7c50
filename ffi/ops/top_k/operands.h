// The call of top_k as its kernels see it: the first items of each row in the order of a sort, and where they stand.
#pragma once

#include "algorithm/index_vector.h"
#include "cuda/policy.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: x [.., n], count [.., 1] or absent. Attributes: k, largest. Results: values [.., k] and indices [.., k],
// 0 and -1 where a row has fewer live items.
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

  // The CUDA kernels take a row in levels. In the first a block takes a part of the row's items, in each later one a
  // part of what those before kept, and keeps the best k of its part; the block of the last level has all that is left.
  struct Levels {
    static constexpr int kMost = 4;
    int count = 0;
    int64_t part[kMost];   // items that a block takes
    int64_t parts[kMost];  // blocks of a row: 1 in the last level
  };
  Levels levels() const;

  // Scratch memory of the CUDA kernels: what the blocks of each level before the last keep, a list a row, which
  // alternate between the two; and how many items each list has, level by level.
  struct Kept {
    void* codes;
    uint32_t* positions;
  };
  struct Scratch {
    Kept kept[2];
    uint32_t* counts;  // [levels - 1, rows]
  };
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
