// segmented_sort on CUDA. Tiles on a fixed grid are sorted within segments by a block each; then, in rounds, runs of
// tiles are merged within the segments that cross tiles. A tile with nothing to merge in a round is not touched.
#include "cuda/launch.cuh"
#include "cuda/segmented_sort/cut_tiles.cuh"
#include "cuda/segmented_sort/describe_tiles.cuh"
#include "cuda/segmented_sort/merge_tiles.cuh"
#include "cuda/segmented_sort/plan_tiles.cuh"
#include "cuda/segmented_sort/sort_tiles.cuh"
#include "operations.h"

namespace mgpu::cuda {

namespace sorting {

template <typename Order, typename Payload>
void run(const Call& call, const SegmentedSortOperands& operands, Order order, cudaStream_t stream) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  const Array& scratch_array = call.results.back();
  Workspace workspace(scratch_array.data, scratch_array.bytes());
  const SegmentedSortOperands::Scratch scratch = operands.layout(workspace);
  const auto buffer = [](const void* keys, const void* payload) {
    return Buffer<Order, Payload>{static_cast<Word*>(const_cast<void*>(keys)),
                                  static_cast<Payload*>(const_cast<void*>(payload))};
  };
  P problem{order,
            operands.segments,
            operands.segments.total(),
            ceil_div<int64_t>(operands.segments.total(), P::kTile),
            buffer(operands.keys, operands.payload),
            {buffer(operands.sorted_keys, operands.sorted_payload), buffer(scratch.keys, scratch.payload)},
            scratch.tiles,
            scratch.rounds,
            scratch.plans,
            scratch.rounds + 1};

  check(call, cudaMemsetAsync(scratch.rounds, 0, SegmentedSortOperands::kCounters * sizeof(int), stream));
  constexpr int kDescribeThreads = 128;
  const int64_t describe_blocks = ceil_div<int64_t>(problem.tiles + 1, kDescribeThreads / kWarp);
  const int all_rounds = group_rounds<int64_t>({0, problem.tiles}, 1);  // of one segment
  static_assert(sizeof(Phases) <= SegmentedSortOperands::kCounters / 2 * sizeof(int));
  Phases* const phases = reinterpret_cast<Phases*>(scratch.rounds + SegmentedSortOperands::kCounters / 2);
  if (operands.nearly_sorted) {
    choose_home<Order, Payload><<<1, 1024, 0, stream>>>(problem, all_rounds, &phases->home[0]);
    check_launch(call);
    describe_rows<<<ceil_div<int64_t>(problem.tiles + 1, kDescribeThreads), kDescribeThreads, 0, stream>>>(
        operands.segments, problem.tiles, P::kTile, &phases->home[0], problem.descriptors);
  } else if (operands.segments.has_flags()) {
    find_tile_heads<<<describe_blocks, kDescribeThreads, 0, stream>>>(operands.segments, problem.tiles, P::kTile,
                                                                      problem.descriptors);
    check_launch(call);
    connect_tiles<512>
        <<<1, 512, 0, stream>>>(problem.total, problem.tiles, P::kTile, problem.descriptors, problem.rounds);
  } else {
    describe_tiles<<<describe_blocks, kDescribeThreads, 0, stream>>>(operands.segments, problem.tiles, P::kTile,
                                                                     problem.descriptors, problem.rounds);
  }
  check_launch(call);
  const auto sort = sort_tiles<Order, Payload>;
  constexpr int kSortShared = sizeof(SortShared<Order, Payload>);
  check(call, cudaFuncSetAttribute(sort, cudaFuncAttributeMaxDynamicSharedMemorySize, kSortShared));
  sort<<<problem.tiles, P::kShape.threads, kSortShared, stream>>>(problem);
  check_launch(call);
  const int64_t plan_blocks = ceil_div<int64_t>(problem.tiles, kPlanTiles);
  constexpr int kMergeShared = sizeof(MergeShared<Order, Payload>);
  const auto merge = merge_tiles<Order, Payload>;
  check(call, cudaFuncSetAttribute(merge, cudaFuncAttributeMaxDynamicSharedMemorySize, kMergeShared));
  const int merge_blocks = resident_blocks(call, merge, P::kShape.threads, kMergeShared, problem.tiles);
  const auto merge_round = [&](int round) {
    plan_tiles<Order, Payload><<<plan_blocks, kPlanThreads, 0, stream>>>(problem, round);
    check_launch(call);
    merge<<<merge_blocks, P::kShape.threads, kMergeShared, stream>>>(problem, round);
    check_launch(call);
  };
  if (operands.nearly_sorted) {
    for (int round = 0; round < all_rounds; ++round) {
      const int phase = round / kPhaseRounds;
      if (round % kPhaseRounds == 0) {
        problem.last_phase = round + kPhaseRounds >= all_rounds;
        problem.target = &phases->home[phase + 1];
        problem.rounds = &phases->rounds[phase];
        cut_tiles<Order, Payload><<<describe_blocks, kDescribeThreads, 0, stream>>>(problem, phase, phases);
        check_launch(call);
        start_segments<Order, Payload><<<problem.tiles, 256, 0, stream>>>(problem, phase, phases);
        check_launch(call);
      }
      merge_round(round);
    }
  } else {
    // A segment lies within a row: no more rounds than the tiles that a row can touch need.
    const int64_t row_tiles = minimum(problem.tiles, ceil_div<int64_t>(operands.segments.length, P::kTile) + 1);
    const int most_rounds = group_rounds<int64_t>({0, row_tiles}, 1);
    for (int round = 0; round < most_rounds; ++round) merge_round(round);
  }
}

}  // namespace sorting

void segmented_sort(const Call& call, cudaStream_t stream) {
  const SegmentedSortOperands operands(call);
  if (operands.segments.total() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width, [&](auto payload) {
      sorting::run<decltype(order), decltype(payload)>(call, operands, order, stream);
    });
  });
}

}  // namespace mgpu::cuda
