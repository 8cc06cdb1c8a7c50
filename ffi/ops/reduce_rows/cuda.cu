// reduce_rows on CUDA.
#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce_rows/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace row_reducing {

template <int kVector, typename Operator>
void launch(const Call& call, const ReduceRowsOperands& operands, const Operator& op, cudaStream_t stream) {
  using State = typename Operator::State;
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace, sizeof(State));
  const RowTiling tiling = operands.tiling(kVector);
  const UnitTiles tiles(operands.ends(), tiling.tiles(), tiling.tile_units(), scratch.items_before);
  const bool gathers = operands.sources.indices.data != nullptr;
  // If blocks run in at most two waves, a search by each block costs less than a kernel for all tiles: 0.144 ms instead
  // of 0.149 for float32 [2^20, 128]; in five waves, 0.160 instead of 0.156. Gathered rows were not timed, as their
  // kernel had no registers to spare.
  const bool finds_tiles = !gathers && tiling.tiles() * tiling.slices() <= 2 * kReduceRowsWave;
  const RowReduction<Operator> reduction{static_cast<const typename Operator::Element*>(operands.x),
                                         operands.sources,
                                         tiles,
                                         finds_tiles,
                                         tiling.slices(),
                                         tiling.vectors(),
                                         tiling.lanes(),
                                         tiling.workers(),
                                         tiling.worker_units(),
                                         scratch.first_end,
                                         reinterpret_cast<State*>(scratch.opening),
                                         reinterpret_cast<State*>(scratch.open),
                                         {operands.result, operands.wide_result}};
  const auto kernel = gathers ? reduce_tiles<kVector, true, Operator> : reduce_tiles<kVector, false, Operator>;
  const int64_t blocks = tiles.tiles * tiling.slices();
  const int64_t shared = reduction.shared_bytes(kVector);
  if (finds_tiles) {
    kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(shared), stream>>>(reduction, op);
    check_launch(call);
  } else {
    partition_units<<<tiles.partition_blocks(), kPartitionThreads, 0, stream>>>(tiles);
    check_launch(call);
    launch_overlapping(call, stream, kernel, blocks, kThreads, shared, reduction, op);
  }
  if (tiles.tiles == 1) return;  // the first end of the first tile closes no segment that has a result
  const int64_t join_blocks = ceil_div<int64_t>(tiles.tiles, kJoinTiles) * ceil_div<int64_t>(tiling.width, kWarp);
  launch_overlapping(call, stream, join_tiles<Operator>, join_blocks, kJoinTiles * kWarp, 0, reduction, op);
}

}  // namespace row_reducing

void reduce_rows(const Call& call, cudaStream_t stream) {
  using namespace row_reducing;
  const ReduceRowsOperands operands(call);
  const int64_t width = operands.sources.width;
  if (operands.segments.rows * operands.segments.heads_count * width == 0) return;
  operands.dispatch_reduction<true>(call, [&](auto op) {
    using Operator = decltype(op);
    constexpr int kMost = kMostVector<Operator>;
    constexpr int kWord = maximum<int>(1, 4 / sizeof(typename Operator::Element));
    const auto fits = [&](int vector) {
      return width % vector == 0 && is_aligned(operands.x) && is_aligned(operands.result);
    };
    if (fits(kMost)) return launch<kMost>(call, operands, op, stream);
    if constexpr (kWord < kMost) {
      if (fits(kWord)) return launch<kWord>(call, operands, op, stream);
    }
    if constexpr (kMost > 1) launch<1>(call, operands, op, stream);
  });
}

}  // namespace mgpu::cuda
