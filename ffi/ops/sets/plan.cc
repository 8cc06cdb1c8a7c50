#include "ops/sets/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t SetsOperands::cuda_row_tiles() const { return row_tiles(set_tile(byte_width(key_type))); }

SetsOperands::Scratch SetsOperands::layout(Workspace& workspace) const {
  const int64_t words = 1 + pair.rows * cuda_row_tiles();
  return {workspace.take<Split<int64_t>>(pair.rows * (cuda_row_tiles() + 1)), workspace.take<uint64_t>(words), words};
}

int64_t workspace::sets(const Call& call) { return layout_bytes(SetsOperands(call)); }

}  // namespace mgpu
