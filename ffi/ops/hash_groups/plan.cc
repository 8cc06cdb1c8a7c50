#include "ops/hash_groups/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

HashGroupsOperands::Scratch HashGroupsOperands::layout(Workspace& workspace) const {
  if (!bucketed) return {};
  Scratch scratch{workspace.take<uint32_t>(kGroupBuckets),
                  workspace.take<uint32_t>(kGroupBuckets + 1),
                  workspace.take<char>(length * byte_width(key_type)),
                  {}};
  for (int c = 0; c < columns; ++c) {
    if (has_values[c]) scratch.values[c] = workspace.take<uint32_t>(length);
  }
  return scratch;
}

int64_t workspace::hash_groups(const Call& call) { return layout_bytes(HashGroupsOperands(call)); }

}  // namespace mgpu
