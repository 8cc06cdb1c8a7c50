#include "cuda/launch/overlapping.h"
#include "ops/segmented_softmax/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace softmax {

template <typename Element>
void launch(const Call& call, const SegmentedSoftmaxOperands& operands, CUstream_st* stream) {
  using Float = Accumulator<Element>;
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace);
  const SoftmaxTiling tiling = operands.tiling();
  const int64_t tiles = tiling.tiles();
  Segments restarts = operands.segments;
  restarts.counts = {};
  const Softmax<Element> task{static_cast<const Element*>(operands.x),
                              static_cast<const Element*>(operands.t),
                              static_cast<Element*>(operands.result),
                              operands.rule,
                              tiling,
                              Divisor(tiling.is_staged ? tiling.group_items() : 1),
                              is_aligned(operands.x) && is_aligned(operands.t) && is_aligned(operands.result),
                              operands.segments,
                              restarts,
                              tiles,
                              scratch.listed,
                              scratch.first_head,
                              scratch.last_head,
                              reinterpret_cast<Part<Float>*>(scratch.opening),
                              reinterpret_cast<Part<Float>*>(scratch.open)};
  const auto searches = static_cast<unsigned>(ceil_div<int64_t>((tiles + 1) * kWarp, scanning::kThreads));
  scanning::list_heads<>
      <<<searches, scanning::kThreads, 0, stream>>>(restarts, tiles, tiling.tile_rows, false, scratch.listed);
  check_launch(call);
  const bool has_tangents = operands.rule >= SoftmaxRule::kSoftmaxTangent;
  const auto kernel = tiling.is_staged
                          ? (has_tangents ? differentiate_tiles<true, Element> : normalize_tiles<true, Element>)
                          : (has_tangents ? differentiate_tiles<false, Element> : normalize_tiles<false, Element>);
  launch_overlapping(call, stream, kernel, tiles * tiling.slabs, kThreads, tiling.shared_bytes(sizeof(Float)), task);
  const auto column_bits = [&](int most_columns) { return minimum(ceil_log2(tiling.width), ceil_log2(most_columns)); };
  const auto blocks = [&](int64_t tiles, int bits) {
    return tiles * ceil_div<int64_t>(tiling.width, int64_t{1} << bits);
  };
  const int join_bits = column_bits(kJoinColumns), close_bits = column_bits(kCloseColumns);
  launch_overlapping(call, stream, join_parts<Element>, blocks(ceil_div<int64_t>(tiles, kJoinWarps), join_bits),
                     kJoinThreads, 0, task, join_bits);
  // If segments are short, the threads
  // suffice for the open rows of most tiles.
  launch_overlapping(call, stream, has_tangents ? close_tiles<true, Element> : close_tiles<false, Element>,
                     blocks(tiles, close_bits), clamp(16 << close_bits, 64, kCloseThreads), 0, task, close_bits);
}

}  // namespace softmax

void segmented_softmax(const Call& call, CUstream_st* stream) {
  const SegmentedSoftmaxOperands operands(call);
  if (operands.segments.total() * operands.width == 0) return;
  switch (operands.dtype) {
    case DType::f16: return softmax::launch<Half>(call, operands, stream);
    case DType::bf16: return softmax::launch<BFloat16>(call, operands, stream);
    case DType::f32: return softmax::launch<float>(call, operands, stream);
    case DType::f64: return softmax::launch<double>(call, operands, stream);
    default: call.fail("x: expected a float type, got " + std::string(dtype_name(operands.dtype)));
  }
}

}  // namespace mgpu::cuda
