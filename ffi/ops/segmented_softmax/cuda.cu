// segmented_softmax on CUDA.
#include "cuda/launch/overlapping.h"
#include "ops/segmented_softmax/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace softmax {

template <bool kLog, typename Element>
void launch(const Call& call, const SegmentedSoftmaxOperands& operands, CUstream_st* stream) {
  using Shape = Shape<Element>;
  using Part = Part<Accumulator<Element>>;
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace);
  const int64_t tiles = operands.tiles();
  Segments restarts = operands.segments;
  restarts.counts = {};
  const Softmax<Element> task{static_cast<const Element*>(operands.x),
                              static_cast<Element*>(operands.result),
                              is_aligned(operands.x) && is_aligned(operands.result),
                              operands.segments,
                              restarts,
                              tiles,
                              scratch.listed,
                              scratch.first_head,
                              scratch.last_head,
                              reinterpret_cast<Part*>(scratch.opening),
                              reinterpret_cast<Part*>(scratch.open)};
  const auto searches = static_cast<unsigned>(ceil_div<int64_t>((tiles + 1) * kWarp, scanning::kThreads));
  scanning::list_heads<>
      <<<searches, scanning::kThreads, 0, stream>>>(restarts, tiles, Shape::kTile, false, scratch.listed);
  check_launch(call);
  launch_overlapping(call, stream, normalize_tiles<kLog, Element>, tiles, Shape::kThreads, 0, task);
  launch_overlapping(call, stream, join_parts<Element>, tiles, kJoinThreads, 0, task);
  launch_overlapping(call, stream, close_tiles<kLog, Element>, tiles, kCloseThreads, 0, task);
}

}  // namespace softmax

void segmented_softmax(const Call& call, CUstream_st* stream) {
  const SegmentedSoftmaxOperands operands(call);
  if (operands.segments.total() == 0) return;
  const auto run = [&](auto element) {
    using Element = decltype(element);
    operands.log ? softmax::launch<true, Element>(call, operands, stream)
                 : softmax::launch<false, Element>(call, operands, stream);
  };
  switch (operands.dtype) {
    case DType::f16: return run(Half{});
    case DType::bf16: return run(BFloat16{});
    case DType::f32: return run(float{});
    case DType::f64: return run(double{});
    default: call.fail("x: expected a float type, got " + std::string(dtype_name(operands.dtype)));
  }
}

}  // namespace mgpu::cuda
