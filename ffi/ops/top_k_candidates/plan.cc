#include "ops/top_k_candidates/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

TopKCandidatesOperands::Parts TopKCandidatesOperands::parts() const {
  const int64_t vector = 16 / byte_width(key_type);  // a row may begin within a vector
  const int64_t groups = ceil_div<int64_t>(length + vector - 1, kCandidateGroup);
  const int64_t blocks = maximum<int64_t>(1, kCandidateBlocks * kReferenceMultiprocessors / maximum<int64_t>(1, rows));
  const int64_t part = maximum(ceil_div(groups, blocks), kCandidatePart / kCandidateGroup);
  return {groups, part, maximum<int64_t>(1, ceil_div(groups, part))};
}

TopKCandidatesOperands::Scratch TopKCandidatesOperands::layout(Workspace& workspace) const {
  const Parts parts = this->parts();
  return {workspace.take<uint64_t>(rows), workspace.take<uint32_t>(rows * parts.groups * kCandidateWords),
          workspace.take<uint32_t>(rows * parts.parts), workspace.take<uint32_t>(rows * parts.parts)};
}

int64_t workspace::top_k_candidates(const Call& call) { return layout_bytes(TopKCandidatesOperands(call)); }

}  // namespace mgpu
