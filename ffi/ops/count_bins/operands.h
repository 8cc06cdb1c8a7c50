// Counts the items of each row in each bin.
#pragma once

#include "algorithm/index_vector.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;

// Operands: x [.., n]; edges [.., bins + 1], sorted, or absent. Attribute: bins. Result: counts [.., bins]. With edges,
// x are keys, and each two neighbouring edges bound a bin that includes its lower edge but not its upper one; the last
// bin includes both. A NaN is in no bin. Without edges, x are the numbers of bins, int32 or int64. An item in no bin is
// not counted.
struct CountBinsOperands {
  bool has_edges;
  DType item_type;
  int64_t rows;
  int64_t length;
  int64_t bins;
  int64_t edge_count;
  const void* x;
  int64_t x_stride;  // from row to row
  const void* edges;
  int64_t edges_stride;
  IndexResult counts;

  explicit CountBinsOperands(const Call& call);
};

}  // namespace mgpu
