#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce/segmented_reduce.cuh"
#include "ops/reduce/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace segment_reducing {

// Returns false if rows have too many items or heads for the kernel.
template <typename Operator>
bool reduce_short_rows(const Call& call, const SegmentedReduceOperands& operands, const Operator& op,
                       cudaStream_t stream) {
  const Segments& segments = operands.segments;
  if (maximum(segments.length, segments.heads_count) > RowTiles::kMostSlots) return false;
  const RowTiles tiles(segments.rows, maximum(segments.length, segments.heads_count));
  const short_rows::SegmentedReduce<Operator> problem{tiles,
                                                      static_cast<const typename Operator::Element*>(operands.x),
                                                      segments,
                                                      Divisor(segments.length),
                                                      Divisor(segments.heads_count),
                                                      shared_pitch(segments.length, false),
                                                      shared_pitch(segments.heads_count, segments.heads_stride == 0),
                                                      tiles.odd_share(segments.length),
                                                      results_of<Operator>(operands)};
  if (problem.shared_bytes() > RowTiles::kMostSharedBytes) return false;
  launch_rows(call, stream, short_rows::segmented_reduce<Operator>, tiles, problem.shared_bytes(), problem,
              problem.room(), op);
  return true;
}

}  // namespace segment_reducing

void segmented_reduce(const Call& call, cudaStream_t stream) {
  using namespace segment_reducing;
  const SegmentedReduceOperands operands(call);
  const SegmentEnds ends = operands.ends();
  if (operands.segments.rows * operands.segments.heads_count == 0) return;
  operands.dispatch_reduction<false>(call, [&](auto op) {
    using Operator = decltype(op);
    using State = typename Operator::State;
    if (reduce_short_rows(call, operands, op, stream)) return;
    Workspace workspace = workspace_of(call);
    const SegmentTiling tiling = operands.tiling(sizeof(State));
    const auto scratch = tiling.layout(workspace);
    const UnitTiles tiles = unit_tiles(tiling, scratch.items_before);
    const SegmentedReduction<Operator> reduction{static_cast<const typename Operator::Element*>(operands.x),
                                                 is_aligned(operands.x),
                                                 tiles,
                                                 reinterpret_cast<State*>(scratch.opening),
                                                 reinterpret_cast<SinceRestart<State>*>(scratch.open),
                                                 results_of<Operator>(operands)};
    partition_units<<<tiles.partition_blocks(), kPartitionThreads, 0, stream>>>(tiles);
    check_launch(call);
    launch_overlapping(call, stream, reduce_tiles<Operator>, tiles.tiles, kThreads, 0, reduction, op);
    // join_tiles stores the result that each tile's first end closes. The first end of the first tile closes none.
    if (tiles.tiles == 1) return;
    launch_overlapping(call, stream, join_tiles<Operator>, join_blocks(tiles.tiles), kJoinThreads, 0, reduction, op);
  });
}

}  // namespace mgpu::cuda
