#include "cuda/launch/overlapping.h"
#include "ops/load_balance/kernels.cuh"
#include "ops/load_balance/partition.h"
#include "ops/load_balance/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace load_balancing {

template <typename Index>
void run(const Call& call, const LoadBalanceOperands& operands, cudaStream_t stream) {
  Index* const objects = static_cast<Index*>(operands.objects);
  Index* const ranks = static_cast<Index*>(operands.ranks);
  if (ShortWork::fits(operands.work, 1)) {
    const ShortWork problem(operands.work, 1);
    return launch_rows(call, stream, short_rows::search_objects<Index>, problem.tiles, problem.shared_bytes(), problem,
                       problem.offsets_room(), objects, ranks);
  }
  Workspace workspace = workspace_of(call);
  const WorkTiles tiles = operands.layout(workspace);
  partition_work(call, stream, operands.work, tiles);
  const auto kernel = ranks ? search_tiles<Index, true> : search_tiles<Index, false>;
  launch_overlapping(call, stream, kernel, operands.work.problems * tiles.tiles, kWorkThreads, 0, operands.work, tiles,
                     objects, ranks);
}

}  // namespace load_balancing

void partition_work(const Call& call, cudaStream_t stream, const WorkList& work, const WorkTiles& tiles) {
  using namespace load_balancing;
  const int64_t blocks = work.problems * CellSearch(work, tiles).blocks();
  // The kernels that replace the offsets come just before this one in the stream, and let it start early.
  if (work.is_replaced) return launch_overlapping(call, stream, partition_cells, blocks, kCellThreads, 0, work, tiles);
  partition_cells<<<static_cast<unsigned>(blocks), kCellThreads, 0, stream>>>(work, tiles);
  check_launch(call);
}

void load_balance_search(const Call& call, cudaStream_t stream) {
  const LoadBalanceOperands operands(call);
  if (operands.work.problems * operands.work.size == 0) return;
  operands.wide ? load_balancing::run<int64_t>(call, operands, stream)
                : load_balancing::run<int32_t>(call, operands, stream);
}

}  // namespace mgpu::cuda
