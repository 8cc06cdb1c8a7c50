#include "ops/scan/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

ScanOperands::Path ScanOperands::path() const {
  const int64_t row_bytes = segments.length * byte_width(dtype);
  if (has_heads() || (kind == OperatorKind::kMul && byte_width(dtype) < 8)) return Path::kSegments;
  if (segments.rows == 1) return Path::kTilesByRow;
  const bool is_whole = row_bytes % 16 == 0;
  const bool is_short = row_bytes < (segments.rows < 4096 ? 2 : 8) * kScanTileBytes;
  if (is_short && (is_whole ? row_bytes >= 512 : row_bytes >= 1000 && segments.rows >= 1024)) return Path::kWarpByRow;
  return is_whole && row_bytes >= 512 ? Path::kTilesByRow : Path::kSegments;
}

ScanOperands::Tiles ScanOperands::tiles(Path path, int64_t state_bytes) const {
  const int64_t width = byte_width(dtype);
  switch (path) {
    case Path::kTilesByRow: return {ceil_div(segments.length, kScanTileBytes / width), segments.rows, state_bytes};
    case Path::kWarpByRow: return {0, 0, state_bytes};
    case Path::kSegments: break;
  }
  return {ceil_div<int64_t>(segments.total(), scan_segments_shape(state_bytes, width).tile()), 1, state_bytes};
}

ScanOperands::Scratch ScanOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  const Tiles segmented = tiles(Path::kSegments, state_bytes);
  const int64_t words = maximum(segmented.look_back_words(), tiles(path(), state_bytes).look_back_words());
  return {workspace.take<uint64_t>(words), workspace.take<int64_t>(segmented.count() + 1)};
}

int64_t workspace::scan(const Call& call) {
  const ScanOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

}  // namespace mgpu
