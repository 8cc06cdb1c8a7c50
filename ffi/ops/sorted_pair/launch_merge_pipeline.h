#pragma once

#include "cuda/launch/overlapping.h"
#include "cuda/launch/shapes.h"
#include "ops/sorted_pair/merge_pipeline.cuh"
#include "runtime/workspace.h"

namespace mgpu::cuda {

template <typename Shape>
KernelShapes pipeline_shapes(const std::string& kernel, Shape shape) {
  const int64_t small = shape(false).block_bytes();
  return {kernel, {{shape(true).block_bytes(), shape(true).wanted_bytes()}, {small, small}}};
}

// Finds the tiles of a pair, and calls launch(start, tiles), which starts the kernel by start(arguments...).
// The start of this kernel, which has persistent blocks, may overlap the search for tiles.
template <typename Order, typename Operands, typename Shape, typename Kernels, typename Launch>
void launch_merge_pipeline(const Call& call, cudaStream_t stream, const Operands& operands, Order order, Shape shape,
                           Kernels kernels, Launch launch) {
  static_assert(Shape{}(false).tile() >= kMinMergeTile && Shape{}(true).tile() >= kMinMergeTile);
  Workspace workspace = workspace_of(call);
  const bool large_stages = shared_memory_limit(call) >= shape(true).wanted_bytes();
  const auto kernel = large_stages ? kernels(std::true_type{}) : kernels(std::false_type{});
  const int width = shape(large_stages).tile();
  const int bytes = 2 * shape(large_stages).stage_bytes;
  const int64_t row_count = ceil_div<int64_t>(operands.pair.row_slots(), width);
  const auto found = operands.layout(workspace);
  constexpr bool kMayBeRuns = std::is_same_v<decltype(operands.layout(workspace)), RunSplits>;
  PipelineTiles<Order, kMayBeRuns> tiles{{operands.pair, order}, width, row_count, found};
  const auto split = [&](auto split_kernel, const auto&... runs) {
    const int64_t blocks = ceil_div<int64_t>(tiles.count() * kSplitLanes, kSplitThreads);
    split_kernel<<<blocks, kSplitThreads, 0, stream>>>(tiles, runs...);
  };
  if constexpr (kMayBeRuns) {
    tiles.row_count += operands.pairs_beyond_first();
    found.run_tiles ? split(split_run_tiles<Order>, operands.runs) : split(split_tiles<Order, true>);
  } else {
    split(split_tiles<Order, false>);
  }
  check_launch(call);
  allow_shared(call, kernel, bytes);
  const int blocks = resident_blocks(call, kernel, kPipelineThreads, bytes, tiles.count());
  launch(
      [&](const auto&... arguments) {
        launch_overlapping(call, stream, kernel, blocks, kPipelineThreads, bytes, arguments...);
      },
      tiles);
}

}  // namespace mgpu::cuda
