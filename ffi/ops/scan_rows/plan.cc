#include "ops/scan_rows/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

RowScanTiling ScanRowsOperands::tiling() const { return {segments.length, width, byte_width(dtype)}; }

RowScanScratch::RowScanScratch(Workspace& workspace, const Segments& segments, const RowScanTiling& tiling,
                               int64_t state_bytes) {
  const int64_t slots = 1 + segments.rows * tiling.slices() * tiling.look_back_words(state_bytes);
  const int64_t problems = segments.heads_count == 0 ? 0 : segments.heads_stride == 0 ? 1 : segments.rows;
  words = slots + ceil_div<int64_t>(problems * tiling.mark_words(), 2);
  look_back = workspace.take<uint64_t>(words);
  marks = look_back ? reinterpret_cast<uint32_t*>(look_back + slots) : nullptr;
}

RowScanScratch ScanRowsOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  return {workspace, segments, tiling(), state_bytes};
}

int64_t workspace::scan_rows(const Call& call) {
  const ScanRowsOperands operands(call);
  if (operands.width == 0) return 0;
  return layout_bytes(operands, operands.state_bytes(call));
}

}  // namespace mgpu
