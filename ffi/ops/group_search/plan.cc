#include "ops/group_search/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

int64_t GroupSearchOperands::cuda_parts(int64_t multiprocessors) const {
  return parts(kGroupSearchBlocks * minimum(multiprocessors, kReferenceMultiprocessors), kGroupSearchPart);
}

GroupSearchOperands::Scratch GroupSearchOperands::layout(Workspace& workspace, int64_t parts) const {
  if (parts == 1) return {};
  const int64_t width = positions.wide ? sizeof(int64_t) : sizeof(int32_t);
  return {workspace.take<int64_t>(problems * parts), workspace.take<char>(problems * parts * kGroupTable * width)};
}

int64_t workspace::group_search(const Call& call) {
  const GroupSearchOperands operands(call);
  return layout_bytes(operands, operands.cuda_parts(kReferenceMultiprocessors));
}

}  // namespace mgpu
