#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce_rows/join_tiles.cuh"
#include "ops/reduce_rows/weighted_column.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace row_reducing {

// Asks for no more shared memory than the blocks take, which leaves the rest to the L1 cache.
template <typename Operator>
void prefer_cache(const Call& call, void (*kernel)(RowReduction<Operator>, Operator)) {
  constexpr int kDynamicBytes = kReduceRowsStagedUnits * kThreads * sizeof(typename Operator::State);
  constexpr int kReservedBytes = 1 << 10;  // for the system, in each block
  int device = 0, most = 0;
  cudaFuncAttributes attributes;
  check(call, cudaFuncGetAttributes(&attributes, kernel));
  check(call, cudaGetDevice(&device));
  check(call, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  const int block = kDynamicBytes + static_cast<int>(attributes.sharedSizeBytes) + kReservedBytes;
  const int percent = minimum(ceil_div(100 * kReduceRowsStagedBlocks * block, most), 100);
  check(call, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent));
}

template <typename Operator>
RowReduction<Operator> reduction_of(const GatheredRowsOperands& operands, const RowTiling& tiling,
                                    const UnitTiles& tiles, bool finds_tiles, const auto& scratch) {
  using State = typename Operator::State;
  constexpr RowOperator kRow = row_operator<Operator>();
  const bool is_aligned = cuda::is_aligned(operands.x) && cuda::is_aligned(operands.result);
  const int part = is_aligned ? static_cast<int>(minimum<int64_t>(tiling.width & -tiling.width, kRow.vector)) : 1;
  const bool long_rows = operands.sources.has_long_numbers();
  return {.x = static_cast<const typename Operator::Element*>(operands.x),
          .weights = static_cast<const typename Operator::Element*>(operands.weights),
          .groups = static_cast<int>(maximum<int64_t>(operands.groups, 1)),
          .sources = operands.sources,
          .tiles = tiles,
          .finds_tiles = finds_tiles,
          .part = part,
          .long_rows = long_rows,
          .is_plain = part == kRow.vector && !long_rows && tiling.row_bytes <= UINT32_MAX,
          .lane_bits = ceil_log2(tiling.lanes()),
          .worker_units = tiling.worker_units(),
          .split = reinterpret_cast<SplitSegment*>(scratch.split),
          .opening = reinterpret_cast<State*>(scratch.opening),
          .open = reinterpret_cast<State*>(scratch.open),
          .result = results_of<Operator>(operands)};
}

template <Weights kWeights, typename Operator>
void launch(const Call& call, const GatheredRowsOperands& operands, const Operator& op, cudaStream_t stream) {
  using State = typename Operator::State;
  Workspace workspace = workspace_of(call);
  constexpr RowOperator kRow = row_operator<Operator>();
  const auto scratch = operands.layout(workspace, kRow);
  const RowTiling tiling = operands.tiling(kRow);
  const UnitTiles tiles(operands.ends(), tiling.tiles(), tiling.tile_units(), scratch.items_before);
  // If blocks run in at most two waves, each searches for its tile. Otherwise a kernel finds all tiles
  // first.
  const bool finds_tiles = tiling.tiles() * tiling.slices() <= 2 * tiling.wave();
  const auto reduction = reduction_of<Operator>(operands, tiling, tiles, finds_tiles, scratch);
  const auto run = [&](auto kernel, int64_t shared) {
    const int64_t blocks = tiles.tiles * tiling.slices();
    if (finds_tiles) {
      kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(shared), stream>>>(reduction, op);
      return check_launch(call);
    }
    partition_units<<<tiles.partition_blocks(), kPartitionThreads, 0, stream>>>(tiles);
    check_launch(call);
    launch_overlapping(call, stream, kernel, blocks, kThreads, shared, reduction, op);
  };
  const auto run_column = [&](auto kernel) {
    prefer_cache(call, kernel);
    run(kernel, tiles.units * int64_t{sizeof(State)});
  };
  const auto run_tiles = [&] {
    constexpr RowOperator kRow = row_operator<Operator>();
    if constexpr (kWeights == Weights::kOne && sizeof(State) == sizeof(uint32_t)) {
      if (is_weighted_column(operands.sources, operands.segments)) {
        return run_column(sum_weighted_column<Operator>);
      }
    }
    if constexpr (kRow.stages && kWeights != Weights::kGroups) {  // a row of one column has one group
      if (tiling.width == 1) return run_column(reduce_short_rows<kWeights, 1, Operator>);
    }
    if constexpr (kRow.stages && kRow.short_columns > 1) {
      if (tiling.is_staged()) {
        return run(reduce_short_rows<kWeights, kRow.short_columns, Operator>,
                   tiles.units * int64_t{kRow.short_columns * sizeof(State)});
      }
    }
    run(reduce_tiles<kWeights, Operator>, reduction.shared_bytes(kWeights == Weights::kOne));
  };
  run_tiles();
  // join_tiles stores the result that each tile's first end closes. The first end of the first tile is where the first
  // segment starts, so it closes none.
  if (tiles.tiles == 1) return;
  const int lane_bits = ceil_log2(clamp<int64_t>(tiling.width, kJoinLeastLanes, kWarp));
  const int64_t join_blocks =
      ceil_div<int64_t>(tiles.tiles, kJoinThreads >> lane_bits) * ceil_div<int64_t>(tiling.width, 1 << lane_bits);
  launch_overlapping(call, stream, join_tiles<Operator>, join_blocks, kJoinThreads, 0, reduction, op, lane_bits);
}

void run_unweighted(const Call& call, const GatheredRowsOperands& operands, cudaStream_t stream) {
  if (operands.is_empty()) return;
  operands.dispatch_reduction<true>(call, [&](auto op) { launch<Weights::kNone>(call, operands, op, stream); });
}

}  // namespace row_reducing

void reduce_rows(const Call& call, cudaStream_t stream) {
  row_reducing::run_unweighted(call, GatheredRowsOperands(ReduceRowsOperands(call)), stream);
}

void gathered_rows(const Call& call, cudaStream_t stream) {
  using namespace row_reducing;
  const GatheredRowsOperands operands(call);
  if (!operands.weights || operands.is_empty()) return run_unweighted(call, operands, stream);
  const auto run = [&](auto op) {
    return operands.groups == 1 ? launch<Weights::kOne>(call, operands, op, stream)
                                : launch<Weights::kGroups>(call, operands, op, stream);
  };
  dispatch_weighted<ArithmeticKind::kEither>(call, operands.dtype, operands.sum_dtype, run);
}

}  // namespace mgpu::cuda
