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

// The lanes that a row gets where they fill the device: so many that each has a few vectors, and more vectors where two
// words of each lane are folded at the row's end. Of 2^27 floats and their argmax, 131,072 rows take 0.119 ms by 32
// lanes and 0.134 by 16, before 0.127 and 0.140 by 8; 2^20 rows of 77 floats take 0.091 by 2 and 0.160 by 8 (H200).
// Fewer rows get more lanes.
template <typename Operator>
int lanes_of_rows(const Segments& segments) {
  constexpr int64_t kEnoughLanes = 1 << 16;
  constexpr int64_t kLaneVectors = Operator::kGivesIndex ? 15 : 6;
  constexpr int64_t kLeastVectors = 4;
  const int64_t vectors = ceil_div<int64_t>(segments.length, Vector<typename Operator::Element>::kItems);
  int lanes = 1;
  while (lanes < kWarp && 2 * lanes * kLaneVectors <= vectors) lanes *= 2;
  while (lanes < kWarp && segments.rows * lanes < kEnoughLanes && lanes * kLeastVectors < vectors) lanes *= 2;
  return lanes;
}

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
      const int lanes = lanes_of_rows<Operator>(segments);
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
