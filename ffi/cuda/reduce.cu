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

// How a row is dealt out to lanes.
struct RowLanes {
  int lanes;
  bool many;  // vectors a lane
};

// A lane has a few vectors where there are enough rows to fill the device, but four lanes, which read a stretch of
// memory together, have fewer. Lanes have more vectors where items are compared by many instructions. By a bare driver
// (H200), rows of 8, 32, 128 and 512 of 2^22 floats take 0.0060, 0.0061, 0.0057 and 0.0057 ms by 1, 4, 8 and 32 lanes,
// but 0.0084 by 2, 0.0080 by 1, 0.0063 by 16 and 0.0061 by 8. 131,072 rows of 1,000 floats and their argmax take 0.117
// and 0.119 by 32 lanes, 0.121 and 0.124 by 8; the argmax of as many integers takes 0.131 by 16, 0.146 by 32.
template <typename Operator>
RowLanes lanes_of_rows(const Segments& segments, const Operator& op) {
  constexpr int64_t kEnoughLanes = 1 << 16;
  constexpr int64_t kLeastVectors = 4;
  constexpr int64_t kManyVectors = 16;
  constexpr int kStretchLanes = 4;
  const bool is_quick = !Operator::kGivesIndex || reducing::has_float_instructions(op);
  const int64_t vectors = ceil_div<int64_t>(segments.length, Vector<typename Operator::Element>::kItems);
  const auto lane_vectors = [&](int lanes) { return !is_quick ? 15 : lanes <= kStretchLanes ? 2 : 4; };
  int lanes = 1;
  while (lanes < kWarp && 2 * lanes * lane_vectors(2 * lanes) <= vectors) lanes *= 2;
  while (lanes < kWarp && segments.rows * lanes < kEnoughLanes && lanes * kLeastVectors < vectors) lanes *= 2;
  return {lanes, vectors >= kManyVectors * lanes};
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
      const auto [lanes, many] = lanes_of_rows(segments, op);
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(segments.rows * lanes, kThreads));
      const auto kernel = many ? reduce_short_rows<Operator, kManyLoads<Operator> != kLoads<Operator>>
                               : reduce_short_rows<Operator, false>;
      kernel<<<blocks, kThreads, 0, stream>>>(reduction, lanes, op);
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
