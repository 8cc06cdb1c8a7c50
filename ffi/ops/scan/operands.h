// The call of scan as its kernels see it: the same on both platforms.
#pragma once

#include "algorithm/look_back.h"
#include "cuda/policy.h"
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
  Path path() const {
    const int64_t row_bytes = segments.length * byte_width(dtype);
    if (has_heads() || (kind == OperatorKind::kMul && byte_width(dtype) < 8)) return Path::kSegments;
    if (segments.rows == 1) return Path::kTilesByRow;
    const bool is_whole = row_bytes % 16 == 0;
    const bool is_short = row_bytes < (segments.rows < 4096 ? 2 : 8) * kScanTileBytes;
    // Of 2^22 floats, rows of 255 and 1,001 take 0.0146 and 0.0118 ms by warps, 0.0207 and 0.0202 by blocks, and rows
    // of 129 as long by both (H200).
    if (is_short && (is_whole ? row_bytes >= 512 : row_bytes >= 1000 && segments.rows >= 1024)) return Path::kWarpByRow;
    return is_whole && row_bytes >= 512 ? Path::kTilesByRow : Path::kSegments;
  }

  struct Tiles {
    int64_t per_row;  // of one look-back
    int64_t rows;
    int64_t value_bytes;  // of what the tiles publish: states or, with restarts, states since the last one
    int64_t count() const { return per_row * rows; }
    int64_t look_back_words() const { return 1 + rows * LookBackLayout{per_row}.words(value_bytes); }
  };
  Tiles tiles(Path path, int64_t state_bytes) const {
    const int64_t width = byte_width(dtype);
    switch (path) {
      case Path::kTilesByRow: return {ceil_div(segments.length, kScanTileBytes / width), segments.rows, state_bytes};
      case Path::kWarpByRow: return {0, 0, state_bytes};
      case Path::kSegments: break;
    }
    return {ceil_div<int64_t>(segments.total(), scan_segments_shape(state_bytes, width).tile()), 1,
            since_restart_bytes(state_bytes)};
  }

  // Scratch memory of the CUDA kernels: a ticket counter and the tiles' look-backs; the listed heads before each tile
  // of the segmented kernel, which can stand in for the others.
  struct Scratch {
    uint64_t* look_back;
    int64_t* listed;
  };
  Scratch layout(Workspace& workspace, int64_t state_bytes) const;
};

}  // namespace mgpu
