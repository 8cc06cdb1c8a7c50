#include "ops/bucket_join/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

unsigned long long* BucketJoinOperands::layout(Workspace& workspace) const {
  return workspace.take<unsigned long long>(problems);
}

int64_t workspace::bucket_join(const Call& call) { return layout_bytes(BucketJoinOperands(call)); }

}  // namespace mgpu
