#include "ops/scan_rows/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

RowScanTiling ScanRowsOperands::tiling() const { return {segments.length, width, byte_width(dtype)}; }

ScanRowsOperands::Scratch ScanRowsOperands::layout(Workspace& workspace, int64_t state_bytes) const {
  if (width == 0) return {};
  const int64_t look_back = 1 + segments.rows * tiling().slices() * tiling().look_back_words(state_bytes);
  const int64_t problems = segments.heads_count == 0 ? 0 : segments.heads_stride == 0 ? 1 : segments.rows;
  const int64_t words = look_back + ceil_div<int64_t>(problems * tiling().mark_words(), 2);
  uint64_t* const memory = workspace.take<uint64_t>(words);
  return {memory, memory ? reinterpret_cast<uint32_t*>(memory + look_back) : nullptr, words};
}

int64_t workspace::scan_rows(const Call& call) {
  const ScanRowsOperands operands(call);
  return layout_bytes(operands, operands.state_bytes(call));
}

}  // namespace mgpu
