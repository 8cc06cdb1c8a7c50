// segmented_search on CUDA.
#include "cuda/launch/launch.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_search/kernels.cuh"
#include "runtime/operations.h"

namespace mgpu::cuda {

void segmented_search(const Call& call, cudaStream_t stream) {
  using namespace segment_searching;
  const SegmentedSearchOperands operands(call);
  const int64_t needles = operands.pair.a.length;
  const int64_t problems = operands.pair.rows;
  if (problems * needles == 0) return;
  operands.dispatch_index([&](auto index) {
    using Index = decltype(index);
    if (operands.segments == 0) {  // all bits of -1 are set
      return check(call, cudaMemsetAsync(operands.positions.data, 0xff, problems * needles * sizeof(Index), stream));
    }
    dispatch_order(call, operands.key_type, false, [&](auto order) {
      const int64_t lanes = ceil_div<int64_t>(needles, kItems);
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(problems * lanes, kThreads));
      search_segments<decltype(order), Index><<<blocks, kThreads, 0, stream>>>(operands, order, lanes);
      check_launch(call);
    });
  });
}

}  // namespace mgpu::cuda
