#include "cuda/launch/overlapping.h"
#include "ops/bucket_join/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

void bucket_join(const Call& call, cudaStream_t stream) {
  using namespace bucket_joining;
  const BucketJoinOperands operands(call);
  if (operands.problems == 0) return;
  Workspace workspace = workspace_of(call);
  unsigned long long* const counters = operands.layout(workspace);
  check(call, cudaMemsetAsync(counters, 0, operands.problems * sizeof(*counters), stream));
  const auto blocks = static_cast<unsigned>(operands.problems * operands.blocks());
  join_buckets<<<blocks, kThreads, 0, stream>>>(operands, counters);
  check_launch(call);
  const int64_t pieces = tail_pieces(operands.problems, operands.size);
  const int tail_blocks = resident_blocks(call, finish_counts, kTailThreads, 0, pieces);
  launch_overlapping(call, stream, finish_counts, tail_blocks, kTailThreads, 0, operands, counters);
}

}  // namespace mgpu::cuda
