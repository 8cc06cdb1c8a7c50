#include "ops/sorted_pair/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t MergeSplits::max_tiles(const SortedPair& pair, int64_t short_tiles) {
  return pair.rows * (ceil_div(pair.row_slots(), kMinMergeTile) + short_tiles);
}

MergeSplits MergeSplits::layout(const SortedPair& pair, Workspace& workspace, int64_t short_tiles) {
  return {workspace.take<int64_t>(max_tiles(pair, short_tiles)), workspace.take<unsigned long long>(1)};
}

}  // namespace mgpu
