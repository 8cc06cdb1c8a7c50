// One kernel marks the heads, if there are any, and another scans.
#include "cuda/launch/launch.h"
#include "ops/common/dispatch_operator.h"
#include "ops/scan_rows/task.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace row_scanning {

template <bool kSegmented, typename Operator>
void launch(const Call& call, const ScanRowsOperands& operands, const Operator& op, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace, sizeof(typename Operator::State));
  const RowScanTiling tiling = operands.tiling();
  const Segments& segments = operands.segments;
  check(call, cudaMemsetAsync(scratch.look_back, 0, scratch.words * sizeof(uint64_t), stream));
  if constexpr (kSegmented) {
    const int64_t problems = segments.heads_stride == 0 ? 1 : segments.rows;
    mark_heads<>
        <<<mark_blocks(segments), kThreads, 0, stream>>>(segments, problems, tiling.mark_words(), scratch.marks);
    check_launch(call);
  }
  const int64_t blocks = segments.rows * tiling.tiles() * tiling.slices();
  call.expect(blocks <= INT32_MAX, "x: expected fewer problems, or larger ones");
  RowScan<Operator> task = make_task<Operator>(tiling, segments, sizeof(typename Operator::State), scratch);
  const auto offset = reinterpret_cast<uintptr_t>(operands.x) - reinterpret_cast<uintptr_t>(operands.result);
  set_copies(task, tiling, offset % 16 == 0, is_aligned(operands.x));
  task.x = static_cast<const typename Operator::Element*>(operands.x);
  task.exclusive = operands.exclusive;
  task.reverse = operands.reverse;
  task.result = {operands.result, operands.wide_result};
  task.totals = {operands.totals, operands.wide_result};
  const auto kernel = scan_tiles<Operator, kSegmented>;
  const auto bytes = static_cast<size_t>(tiling.shared_bytes());
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(task, op);
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
