// scan_rows on CUDA, in one pass over memory.
#include "cuda/launch/launch.h"
#include "ops/common/dispatch_operator.h"
#include "ops/scan_rows/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace row_scanning {

template <typename Operator>
RowScan<Operator> make_task(const RowScanTiling& tiling, const ScanRowsOperands& operands,
                            const ScanRowsOperands::Scratch& scratch) {
  const Segments& segments = operands.segments;
  const bool contiguous = tiling.slices() == 1;
  const auto offset = reinterpret_cast<uintptr_t>(operands.x) - reinterpret_cast<uintptr_t>(operands.result);
  const bool aligned =
      offset % 16 == 0 && (contiguous || (is_aligned(operands.x) && tiling.width % tiling.vector() == 0));
  RowScan<Operator> task{.x = static_cast<const typename Operator::Element*>(operands.x),
                         .segments = segments,
                         .width = tiling.width,
                         .tiles = static_cast<unsigned>(tiling.tiles()),
                         .slices = static_cast<unsigned>(tiling.slices()),
                         .columns = tiling.columns(),
                         .groups = tiling.groups(),
                         .contiguous = contiguous,
                         .aligned = aligned,
                         .row_copies = Quotient(tiling.columns() / (aligned && !contiguous ? tiling.vector() : 1)),
                         .element_space = tiling.element_space(),
                         .exclusive = operands.exclusive,
                         .reverse = operands.reverse,
                         .look_back = scratch.look_back,
                         .slice_words = tiling.look_back_words(sizeof(typename Operator::State)),
                         .level_slots = {},
                         .marks = scratch.marks,
                         .mark_words = segments.heads_stride == 0 ? 0 : tiling.mark_words(),
                         .result = {operands.result, operands.wide_result},
                         .totals = {operands.totals, operands.wide_result}};
  for (int level = 0; level <= RowLookBack::kLevels; ++level) {
    task.level_slots[level] = RowLookBack{tiling.tiles()}.begin(level);
  }
  return task;
}

template <bool kSegmented, typename Operator>
void launch(const Call& call, const ScanRowsOperands& operands, const Operator& op, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace, sizeof(typename Operator::State));
  const RowScanTiling tiling = operands.tiling();
  const Segments& segments = operands.segments;
  check(call, cudaMemsetAsync(scratch.look_back, 0, scratch.words * sizeof(uint64_t), stream));
  if constexpr (kSegmented) {
    const int64_t problems = segments.heads_stride == 0 ? 1 : segments.rows;
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(problems * segments.heads_count, kThreads));
    mark_heads<><<<blocks, kThreads, 0, stream>>>(segments, problems, tiling.mark_words(), scratch.marks);
    check_launch(call);
  }
  const int64_t blocks = segments.rows * tiling.tiles() * tiling.slices();
  call.expect(blocks <= INT32_MAX, "x: expected fewer problems, or larger ones");
  const auto kernel = scan_tiles<Operator, kSegmented>;
  const auto bytes = static_cast<size_t>(tiling.shared_bytes());
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(make_task<Operator>(tiling, operands, scratch),
                                                                     op);
  check_launch(call);
}

}  // namespace row_scanning

void scan_rows(const Call& call, cudaStream_t stream) {
  const ScanRowsOperands operands(call);
  if (operands.segments.rows * operands.width == 0 || (operands.segments.length == 0 && !operands.totals)) return;
  operands.dispatch<true>(call, [&](auto op) {
    operands.segments.heads_count > 0 ? row_scanning::launch<true>(call, operands, op, stream)
                                      : row_scanning::launch<false>(call, operands, op, stream);
  });
}

}  // namespace mgpu::cuda
