// Tiles on a fixed grid are sorted within segments, one block per tile. Then rounds merge runs of tiles within the
// segments that cross tiles. A round does not touch tiles with nothing to merge.
#pragma once

#include "cuda/launch/launch.h"
#include "ops/segmented_sort/describe_tiles.cuh"
#include "ops/segmented_sort/plan.h"
#include "ops/segmented_sort/plan_tiles.cuh"

namespace mgpu::cuda::sorting {

template <typename Order, typename Payload>
Buffer<Order, Payload> buffer(const void* keys, const void* payload) {
  return {static_cast<typename Order::Word*>(const_cast<void*>(keys)),
          static_cast<Payload*>(const_cast<void*>(payload))};
}

// `kernels` launches the kernels that depend on the order, which may be compiled at run time: sort(problem),
// merge_blocks(tiles), plan(problem, blocks, round), merge(problem, blocks, round). If the plan has a radix sort, long
// segments are described, but not sorted here.
template <typename Order, typename Payload, typename Kernels>
void sort_segments(const Call& call, const SortPlan& plan, const SortScratch& scratch, Order order, cudaStream_t stream,
                   const Kernels& kernels) {
  using P = Problem<Order, Payload>;
  const SegmentedSortOperands& operands = plan.operands();
  const int64_t min_long = plan.min_long_segment();
  const P problem{order,
                  operands.segments,
                  operands.segments.total(),
                  ceil_div<int64_t>(operands.segments.total(), P::kTile),
                  buffer<Order, Payload>(operands.keys, operands.payload),
                  {buffer<Order, Payload>(operands.sorted_keys, operands.sorted_payload),
                   buffer<Order, Payload>(scratch.keys, scratch.payload)},
                  scratch.tiles,
                  scratch.rounds,
                  scratch.plans,
                  scratch.rounds + 1,
                  min_long != INT64_MAX};

  check(call, cudaMemsetAsync(scratch.rounds, 0, scratch.zeroed_bytes, stream));
  constexpr int kDescribeThreads = 128;
  const int64_t describe_blocks = ceil_div<int64_t>(problem.tiles + 1, kDescribeThreads / kWarp);
  if (operands.segments.has_flags()) {
    find_tile_heads<<<describe_blocks, kDescribeThreads, 0, stream>>>(operands.segments, problem.tiles, P::kTile,
                                                                      problem.descriptors);
    check_launch(call);
    connect_tiles<512>
        <<<1, 512, 0, stream>>>(problem.total, problem.tiles, P::kTile, problem.descriptors, min_long, problem.rounds);
  } else {
    describe_tiles<<<describe_blocks, kDescribeThreads, 0, stream>>>(operands.segments, problem.tiles, P::kTile,
                                                                     problem.descriptors, min_long, problem.rounds);
  }
  check_launch(call);
  kernels.sort(problem);
  // A merged segment lies within a row, and is shorter than a long segment, so it touches at most `max_tiles` tiles. A
  // round merges groups of four runs, so no segment takes more than ceil(log2(max_tiles) / 2) rounds.
  const int64_t max_items = minimum(operands.segments.length, min_long);
  const int64_t max_tiles = minimum(problem.tiles, ceil_div<int64_t>(max_items, P::kTile) + 1);
  const int max_rounds = group_rounds<int64_t>({0, max_tiles}, 1);
  const int64_t plan_blocks = ceil_div<int64_t>(problem.tiles, kPlanTiles);
  const int merge_blocks = kernels.merge_blocks(problem.tiles);
  for (int round = 0; round < max_rounds; ++round) {
    kernels.plan(problem, plan_blocks, round);
    kernels.merge(problem, merge_blocks, round);
  }
}

}  // namespace mgpu::cuda::sorting
