// reduce_by_id on CUDA, where ids are few.
#include "cuda/launch_overlapping.h"
#include "cuda/reduce_by_id.cuh"
#include "operands/dispatch_operator.h"
#include "operations.h"
#include "workspace.h"

namespace mgpu::cuda {

void reduce_by_id(const Call& call, cudaStream_t stream) {
  using namespace id_reducing;
  const ReduceByIdOperands operands(call);
  if (operands.segments.rows * operands.slots() == 0) return;
  operands.dispatch_reduction<true>(call, [&](auto op) {
    using Operator = decltype(op);
    using State = typename Operator::State;
    call.expect(operands.slots() * static_cast<int64_t>(sizeof(State)) <= kIdTableBytes, "size: too many results");
    Workspace workspace = workspace_of(call);
    IdReduction<Operator> reduction{static_cast<const typename Operator::Element*>(operands.x),
                                    operands.ids,
                                    operands.x_stride,
                                    operands.ids_stride,
                                    operands.segments,
                                    operands.width,
                                    operands.size,
                                    operands.slots(),
                                    operands.parts(),
                                    1,
                                    reinterpret_cast<State*>(operands.layout(workspace, sizeof(State))),
                                    {operands.result, operands.wide_result}};
    const int64_t room = shared_memory_limit(call) / reduction.warp_bytes();
    reduction.warps = static_cast<int>(clamp<int64_t>(room, 1, kIdMostWarps));
    const int64_t bytes = reduction.warps * reduction.warp_bytes();
    const auto kernel = reduce_parts<Operator>;
    allow_shared(call, kernel, bytes);
    kernel<<<static_cast<unsigned>(operands.segments.rows * reduction.parts), reduction.warps * kWarp, bytes, stream>>>(
        reduction, op);
    check_launch(call);
    const int64_t blocks = operands.segments.rows * ceil_div<int64_t>(reduction.slots, kWarp);
    launch_overlapping(call, stream, join_parts<Operator>, blocks, kJoinWarps * kWarp, 0, reduction, op);
  });
}

}  // namespace mgpu::cuda
