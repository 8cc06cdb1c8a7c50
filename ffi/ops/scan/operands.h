// The call of scan as its kernels see it: the same on both platforms.
#pragma once

#include "ops/common/operators.h"

namespace mgpu {

class Arguments;

// Operands: x [.., n], heads [.., m] or absent, count [.., 1] or absent. Attributes: op, exclusive, reverse, total.
// Results: [.., n], and with `total` one a row.
struct ScanOperands : OperatorOperands {
  bool exclusive;
  bool reverse;
  void* result;
  void* totals = nullptr;
  bool wide_result;

  explicit ScanOperands(const Call& call);
  ScanOperands(const Call& call, const Arguments& in);

  // Whether the scan restarts anywhere but at the start of a row.
  bool has_heads() const { return segments.heads_count > 0; }

  // Ways to scan on CUDA: tiles on a grid of each row's own, where rows are long enough that their partly filled last
  // tiles do not count; a row by a warp, where they are not, or are so many that the device is busy; tiles on a grid
  // over all rows, with restarts. The first takes rows of whole vectors of 16 bytes, and the second others too where
  // there are many: a warp shares two vectors of each with its neighbours. Of products, which are rare, these two take
  // those whose states are so wide that restarts double what the tiles publish.
  enum class Path { kTilesByRow, kWarpByRow, kSegments };
  Path path() const;

  // What CUDA runs: plan.h.
  struct Tiles;
  Tiles tiles(Path path, int64_t state_bytes) const;
  struct Scratch;
  Scratch layout(Workspace& workspace, int64_t state_bytes) const;
};

}  // namespace mgpu
