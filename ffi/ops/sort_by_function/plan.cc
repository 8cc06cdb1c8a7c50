// Sorts by a caller's function use the kernels for segments, also for whole rows.
#include "ops/segmented_sort/plan.h"

#include "ops/sort_by_function/operands.h"
#include "runtime/call.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t workspace::sort_by_function(const Call& call) {
  const SortFunctionOperands operands(call);
  return layout_bytes(SortPlan(operands.sort, SortVariant::kSegments));
}

int64_t workspace::sort_indices_by_function(const Call& call) {
  const SortIndicesFunctionOperands operands(call);
  return layout_bytes(SortPlan(operands.sort, SortVariant::kSegments));
}

}  // namespace mgpu
