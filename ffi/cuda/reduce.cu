// reduce on CUDA.
#include "cuda/launch_overlapping.h"
#include "cuda/reduce.cuh"
#include "operands/dispatch_operator.h"
#include "operations.h"
#include "workspace.h"

namespace mgpu::cuda {

namespace {

// The power of two at or above n, up to `most`.
int power_of_two(int64_t n, int most) { return 1 << minimum(ceil_log2(n), ceil_log2(most)); }

}  // namespace

void reduce(const Call& call, cudaStream_t stream) {
  using namespace reducing;
  const ReduceOperands operands(call);
  const Segments& segments = operands.segments;
  if (segments.rows == 0) return;
  operands.dispatch_reduction<true>(call, [&](auto op) {
    using Operator = decltype(op);
    using State = typename Operator::State;
    Workspace workspace = workspace_of(call);
    auto* states = reinterpret_cast<State*>(operands.layout(workspace, sizeof(State)));
    const Reduction<Operator> reduction{static_cast<const typename Operator::Element*>(operands.x),
                                        is_aligned(operands.x),
                                        segments,
                                        operands.chunk_items(),
                                        operands.chunks(),
                                        states,
                                        {operands.result, operands.wide_result}};
    if (operands.has_short_rows()) {
      const int vectors = Vector<typename Operator::Element>::kItems * 4;  // a lane's share
      int lanes = power_of_two(ceil_div<int64_t>(segments.length, vectors), kWarp);
      // What lanes fold at a row's end counts: no more of them than fill the device.
      constexpr int64_t kEnoughLanes = 1 << 20;
      while (lanes > 8 && segments.rows * lanes > kEnoughLanes) lanes /= 2;
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(segments.rows * lanes, kThreads));
      reduce_short_rows<<<blocks, kThreads, 0, stream>>>(reduction, lanes, op);
      return check_launch(call);
    }
    reduce_chunks<<<static_cast<unsigned>(segments.rows * reduction.chunks), kThreads, 0, stream>>>(reduction, op);
    check_launch(call);
    if (reduction.chunks == 1) return;
    const int threads = maximum(kWarp, power_of_two(reduction.chunks, 1024));
    launch_overlapping(call, stream, reduce_states<Operator>, segments.rows, threads, 0, reduction, op);
  });
}

}  // namespace mgpu::cuda
