// The columns of rows are scanned separately.
#pragma once

#include "ops/common/operators.h"

namespace mgpu {

class Arguments;
struct RowScanTiling;
struct RowScanScratch;

// Operands: x [.., n, width]; heads [.., m], where the scan restarts, or absent; count [.., 1] or absent. Attributes:
// op, exclusive, reverse, total. Results: [.., n, width], and with `total` [.., width].
struct ScanRowsOperands : OperatorOperands {
  int64_t width;
  bool exclusive;
  bool reverse;
  void* result;
  void* totals = nullptr;
  bool wide_result;

  explicit ScanRowsOperands(const Call& call);
  ScanRowsOperands(const Call& call, const Arguments& in);

  // These are for CUDA (plan.h).
  RowScanTiling tiling() const;
  RowScanScratch layout(Workspace& workspace, int64_t state_bytes) const;
};

}  // namespace mgpu
