#pragma once

#include "ops/common/operators.h"

namespace mgpu {

class Arguments;

// Operands: x [.., n]; heads [.., m], where the scan restarts, or absent; count [.., 1] or absent; initial [.., 1] or
// absent. Attributes: op, exclusive, reverse, total. Results: [.., n], and with `total` one per row.
struct ScanOperands : OperatorOperands {
  bool exclusive;
  bool reverse;
  void* result;
  void* totals = nullptr;
  const void* initial;  // the item that precedes those of each row in the scan, or null
  bool wide_result;

  explicit ScanOperands(const Call& call);
  ScanOperands(const Call& call, const Arguments& in);

  // Whether heads are given.
  bool has_heads() const { return segments.heads_count > 0; }

  // The variants on CUDA, except for some short rows (cuda.cu). `path` (plan.cc) has the exact conditions.
  //   kTilesByRow  Each row has its own tiles. This is for a single row,
  //                and for long rows of whole vectors of 16 bytes.
  //   kWarpByRow   A warp scans a row that is not long. If there are many rows,
  //                they need not consist of whole vectors.
  //   kSegments    Tiles run on across rows, with restarts. This is for all other scans, and for products of items
  //                of up to 4 bytes.
  enum class Path { kTilesByRow, kWarpByRow, kSegments };
  Path path() const;

  // These are for CUDA (plan.h).
  struct Tiles;
  Tiles tiles(Path path, int64_t state_bytes) const;
  struct Scratch;
  Scratch layout(Workspace& workspace, int64_t state_bytes) const;
};

}  // namespace mgpu
