// The call of scan as its kernels see it: the same on both platforms.
#pragma once

#include "ops/common/operators.h"

namespace mgpu {

class Arguments;

// Operands: x [.., n], heads [.., m] or absent, count [.., 1] or absent. Attributes: op, exclusive, reverse, total.
// Results: [.., n], and with `total` one per row.
struct ScanOperands : OperatorOperands {
  bool exclusive;
  bool reverse;
  void* result;
  void* totals = nullptr;
  bool wide_result;

  explicit ScanOperands(const Call& call);
  ScanOperands(const Call& call, const Arguments& in);

  // Whether the scan restarts anywhere except at the start of a row.
  bool has_heads() const { return segments.heads_count > 0; }

  // The variants on CUDA: tiles on a grid for each row, if rows are long enough that their partly filled last tiles do
  // not matter; one warp per row, if they are not, or if there are enough rows to keep the device busy; tiles on one
  // grid over all rows, with restarts. The first takes rows of whole vectors of 16 bytes. The second also takes other
  // rows if there are many: a warp then shares two vectors of each with its neighbours. For products, which are rare,
  // these two take only states so wide that restarts double what the tiles publish.
  enum class Path { kTilesByRow, kWarpByRow, kSegments };
  Path path() const;

  // The plan on CUDA (plan.h).
  struct Tiles;
  Tiles tiles(Path path, int64_t state_bytes) const;
  struct Scratch;
  Scratch layout(Workspace& workspace, int64_t state_bytes) const;
};

}  // namespace mgpu
