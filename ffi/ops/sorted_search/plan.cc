#include "ops/sorted_search/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

MergeSplits SortedSearchOperands::layout(Workspace& workspace) const { return MergeSplits::layout(pair, workspace); }

int64_t workspace::sorted_search(const Call& call) { return layout_bytes(SortedSearchOperands(call)); }

MergeSplits SortedMatchOperands::layout(Workspace& workspace) const { return MergeSplits::layout(pair, workspace); }

int64_t workspace::sorted_match(const Call& call) { return layout_bytes(SortedMatchOperands(call)); }

}  // namespace mgpu
