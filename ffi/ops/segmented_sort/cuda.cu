// Sorts whole rows by ranks and by merging. sort_segments.h sorts segments; digits.cu and row_digits.cu sort by digits.
#include "cuda/launch/overlapping.h"
#include "cuda/launch/shapes.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_sort/cut_rows.cuh"
#include "ops/segmented_sort/digit_sort.h"
#include "ops/segmented_sort/measure_disorder.cuh"
#include "ops/segmented_sort/merge_rows.cuh"
#include "ops/segmented_sort/merge_tiles.cuh"
#include "ops/segmented_sort/rank_rows.cuh"
#include "ops/segmented_sort/sort_rows.cuh"
#include "ops/segmented_sort/sort_segments.h"
#include "ops/segmented_sort/sort_tiles.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace sorting {

template <typename P>
void run_phases(const Call& call, P problem, const SortScratch& scratch, int max_rounds, cudaStream_t stream) {
  const Segments& segments = problem.segments;
  const int64_t tiles = segments.rows * problem.row_tiles;
  const auto merge = merge_rows<P>;
  constexpr int kMergeShared = sizeof(MergeRowsShared<P>);
  allow_shared(call, merge, kMergeShared);
  // Only the device knows how many tiles are to be merged.
  const auto few_blocks = [&](auto kernel, int threads, int shared_bytes, int64_t tiles) {
    constexpr int kTurns = 4;  // waves of blocks, so that a multiprocessor does not wait for a slow block
    return minimum(tiles, int64_t{kTurns} * resident_blocks(call, kernel, threads, shared_bytes, tiles));
  };
  constexpr int kCutThreads = 128;
  constexpr int kCellTiles = P::kCell / P::kTile;
  static_assert(kCellTiles == 1 || kCellTiles == 2);
  constexpr int kCellTilesShift = kCellTiles - 1;
  auto* counts = reinterpret_cast<Phase::Counts*>(scratch.rounds + 1);  // after the flag `unplain`
  for (int first_round = 0; first_round < max_rounds; first_round += kPhaseRounds, ++counts) {
    const int64_t width = int64_t{P::kCell} << (2 * first_round);
    const Phase phase{width,
                      ceil_div(segments.length, width),
                      kCellTilesShift + 2 * first_round,
                      first_round + kPhaseRounds >= max_rounds,
                      scratch.cuts,
                      scratch.groups,
                      {scratch.group_tiles[0], scratch.group_tiles[1]},
                      counts};
    const int64_t groups = segments.rows * ceil_div<int64_t>(phase.row_cells, kGroupCells);
    launch_overlapping(call, stream, cut_cells<P>, ceil_div<int64_t>(groups, kCutThreads / kWarp), kCutThreads, 0,
                       problem, phase);
    const auto start = start_segments<P>;
    launch_overlapping(call, stream, start, few_blocks(start, kStartThreads, 0, tiles), kStartThreads, 0, problem,
                       phase);
    const int64_t merges = tiles + segments.rows * phase.row_cells;
    problem.short_groups_count = &counts->short_groups;
    for (int round = 0; round < minimum(kPhaseRounds, max_rounds - first_round); ++round) {
      problem.group_tiles = phase.group_tiles[round];
      problem.group_tiles_count = &counts->tiles[round];
      launch_overlapping(call, stream, split_rows<P>, ceil_div<int64_t>(merges, kPlanThreads / kSplitLanes),
                         kPlanThreads, 0, problem, round);
      launch_overlapping(call, stream, merge, few_blocks(merge, P::kMerge.threads, kMergeShared, merges),
                         P::kMerge.threads, kMergeShared, problem, round);
    }
  }
}

template <TileShape kSort, typename Payload, typename Order>
CellProblem<Order, Payload, kSort> cell_problem(const SegmentedSortOperands& operands, const Order& order,
                                                const SortScratch& scratch, bool merges_pairs = false) {
  const Segments& segments = operands.segments;
  return {order,
          segments,
          ceil_div<int64_t>(segments.length, CellProblem<Order, Payload, kSort>::kCell),
          merges_pairs,
          buffer<Order, Payload>(operands.keys, operands.payload),
          {buffer<Order, Payload>(operands.sorted_keys, operands.sorted_payload),
           buffer<Order, Payload>(scratch.keys, scratch.payload)},
          scratch.rounds};
}

template <RowShape kShape, typename Payload, typename Order>
RowProblem<Order, Payload, kShape> row_problem(const SegmentedSortOperands& operands, const Order& order,
                                               const SortScratch& scratch) {
  using P = RowProblem<Order, Payload, kShape>;
  return {cell_problem<kShape.sort, Payload>(operands, order, scratch, P::kPairs),
          ceil_div<int64_t>(operands.segments.length, P::kTile), scratch.splits};
}

template <typename P>
void launch_sort_rows(const Call& call, const P& problem, cudaStream_t stream) {
  const auto sort = sort_rows<P>;
  constexpr int kShared = sizeof(CellShared<P>);
  allow_shared(call, sort, kShared);
  const Segments& segments = problem.segments;
  const int cell_rows = P::kPacked ? P::kSort.threads / packed_row_threads(segments.length, P::kSort) : 1;
  sort<<<ceil_div<int64_t>(segments.rows, cell_rows) * problem.row_cells, P::kSort.threads, kShared, stream>>>(problem);
  check_launch(call);
}

template <typename Order, typename Payload>
constexpr bool kMergesLongRows = merges_long_rows(sizeof(typename Order::Word), kPayloadWidth<Payload>);

// Whether there are kernels with large cells.
template <typename Order, typename Payload>
constexpr bool kHasLargeCells = sizeof(typename Order::Word) < 8 || std::is_same_v<Payload, NoPayload>;

template <typename Order, typename Payload>
void run_ranks(const Call& call, const SegmentedSortOperands& operands, Order order, cudaStream_t stream) {
  const int64_t groups = ceil_div<int64_t>(operands.segments.length, kWarp);
  const int warps = static_cast<int>(minimum<int64_t>(groups, kRankWarps));
  rank_rows<<<operands.segments.rows * groups, warps * kWarp, 0, stream>>>(
      cell_problem<kOneCellShape.sort, Payload>(operands, order, SortScratch{}), groups);
  check_launch(call);
}

template <typename Order, typename Payload>
void run_packed(const Call& call, const SortPlan& plan, Order order, cudaStream_t stream) {
  const SegmentedSortOperands& operands = plan.operands();
  const auto launch = [&]<TileShape kSort>() {
    const PackedProblem<Order, Payload, kSort> problem{cell_problem<kSort, Payload>(operands, order, SortScratch{})};
    launch_sort_rows(call, problem, stream);
  };
  if constexpr (kHasLargeCells<Order, Payload>) {
    if (plan.packs_large_cells()) return launch.template operator()<kOneCellShape.sort>();
  }
  launch.template operator()<kFewItemsShape.sort>();
}

// When the cells are merged, each item finds its own position.
template <typename Order, typename Payload>
void run_few_items(const Call& call, const SegmentedSortOperands& operands, Order order, const SortScratch& scratch,
                   cudaStream_t stream) {
  using P = RowProblem<Order, Payload, kFewItemsShape>;
  const P problem = row_problem<kFewItemsShape, Payload>(operands, order, scratch);
  launch_sort_rows<typename P::Cells>(call, problem, stream);
  const Segments& segments = operands.segments;
  const int64_t warps = segments.rows * ceil_div<int64_t>(segments.length, kWarp * P::kMerge.items);
  const int64_t blocks = ceil_div<int64_t>(warps * kWarp, P::kMerge.threads);
  for (int round = 0; round < problem.rounds(segments.length); ++round) {
    merge_rows_by_rank<<<blocks, P::kMerge.threads, 0, stream>>>(problem, round);
    check_launch(call);
  }
}

template <typename Order>
const int* launch_measure_disorder(const Call& call, const SegmentedSortOperands& operands, const Order& order,
                                   const SortScratch& scratch, int64_t distance, cudaStream_t stream) {
  int* const inversions = scratch.rounds + SortScratch::kCounters - 1;  // zeroed with the other counters
  const int64_t samples = ceil_div<int64_t>(operands.segments.total(), kSampleItems);
  measure_disorder<<<ceil_div<int64_t>(samples, kDisorderThreads), kDisorderThreads, 0, stream>>>(
      order, operands.segments, static_cast<const typename Order::Word*>(operands.keys), distance, inversions);
  check_launch(call);
  return inversions;
}

// Sorts cells, then merges them in rounds; for nearly sorted rows, in phases.
template <RowShape kShape, typename Order, typename Payload>
void run_rows(const Call& call, const SortPlan& plan, Order order, const SortScratch& scratch, cudaStream_t stream) {
  using P = RowProblem<Order, Payload, kShape>;
  constexpr int kWidth = sizeof(typename Order::Word);
  static_assert(maximum(sizeof(CellShared<typename P::Cells>), sizeof(MergeRowsShared<P>)) <=
                row_shared_bytes(kWidth, P::kHasPayload));
  const SegmentedSortOperands& operands = plan.operands();
  P problem = row_problem<kShape, Payload>(operands, order, scratch);
  const Segments& segments = operands.segments;
  const int max_rounds = problem.rounds(segments.length);
  const bool may_be_digits = plan.variant() == SortVariant::kNearlySortedOrDigits;
  const bool phases = (may_be_digits || plan.variant() == SortVariant::kNearlySorted) && max_rounds > 0;
  if (phases) problem.groups = scratch.groups;
  if (phases || (!Order::kTotal && max_rounds > 0)) {
    check(call, cudaMemsetAsync(scratch.rounds, 0, SortScratch::kCounters * sizeof(int), stream));
  }
  if (phases && may_be_digits) {
    // Rows are sorted by digits if the samples say that every fourth cell has an item far from its place.
    const int* const inversions =
        launch_measure_disorder(call, operands, order, scratch, int64_t{4} * P::kCell, stream);
    problem.disorder = {inversions, static_cast<int>(segments.total() / kSampleItems / P::kCell / 4)};
    sort_by_digits(call, plan, scratch, problem.disorder, stream);
  }
  launch_sort_rows<typename P::Cells>(call, problem, stream);
  if constexpr (!P::kPairs) {
    if (phases) return run_phases(call, problem, scratch, max_rounds, stream);
  }
  const int64_t tiles = segments.rows * problem.row_tiles;
  const auto merge = merge_rows<P>;
  constexpr int kMergeShared = sizeof(MergeRowsShared<P>);
  allow_shared(call, merge, kMergeShared);
  for (int round = 0; round < max_rounds; ++round) {
    if constexpr (P::kPairs) {
      launch_overlapping(call, stream, merge, tiles, P::kMerge.threads, kMergeShared, problem, round);
    } else {
      split_rows<<<ceil_div<int64_t>(tiles, kPlanThreads / kSplitLanes), kPlanThreads, 0, stream>>>(problem, round);
      check_launch(call);
      merge<<<tiles, P::kMerge.threads, kMergeShared, stream>>>(problem, round);
      check_launch(call);
    }
  }
}

template <typename Order, typename Payload>
struct SegmentKernels {
  using P = Problem<Order, Payload>;
  static constexpr int kMergeShared = sizeof(MergeShared<Order, Payload>);
  const Call& call;
  cudaStream_t stream;

  void sort(const P& problem) const {
    const auto kernel = sort_tiles<Order, Payload>;
    constexpr int kShared = sizeof(SortShared<Order, Payload>);
    allow_shared(call, kernel, kShared);
    launch_overlapping(call, stream, kernel, problem.tiles, P::kShape.threads, kShared, problem);
  }
  int merge_blocks(int64_t tiles) const {
    const auto kernel = merge_tiles<Order, Payload>;
    allow_shared(call, kernel, kMergeShared);
    return resident_blocks(call, kernel, P::kShape.threads, kMergeShared, tiles);
  }
  void plan(const P& problem, int64_t blocks, int round) const {
    plan_tiles<Order, Payload><<<blocks, kPlanThreads, 0, stream>>>(problem, round);
    check_launch(call);
  }
  void merge(const P& problem, int blocks, int round) const {
    merge_tiles<Order, Payload><<<blocks, P::kShape.threads, kMergeShared, stream>>>(problem, round);
    check_launch(call);
  }
};

template <typename Order, typename Payload>
void run_plan(const Call& call, const SortPlan& plan, const SortScratch& scratch, Order order, cudaStream_t stream) {
  constexpr int kWidth = sizeof(typename Order::Word);
  constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  const SegmentedSortOperands& operands = plan.operands();
  switch (plan.variant()) {
    case SortVariant::kRanks: return run_ranks<Order, Payload>(call, operands, order, stream);
    case SortVariant::kPackedRows: return run_packed<Order, Payload>(call, plan, order, stream);
    case SortVariant::kFewItems: return run_few_items<Order, Payload>(call, operands, order, scratch, stream);
    case SortVariant::kPairs:
      if constexpr (merges_pairs(kWidth)) {
        return run_rows<pairs_shape(kWidth, kHasPayload), Order, Payload>(call, plan, order, scratch, stream);
      }
      break;
    case SortVariant::kOneCell:
      if constexpr (merges_pairs(kWidth) && kHasLargeCells<Order, Payload>) {
        return launch_sort_rows(call, cell_problem<kOneCellShape.sort, Payload>(operands, order, scratch), stream);
      }
      break;
    case SortVariant::kNearlySortedOrDigits:
    case SortVariant::kNearlySorted:
    case SortVariant::kLongRows:
      if constexpr (kMergesLongRows<Order, Payload>) {
        return run_rows<row_shape(kWidth, kHasPayload), Order, Payload>(call, plan, order, scratch, stream);
      }
      break;
    case SortVariant::kLongSegments:
    case SortVariant::kSegments: {
      const SegmentKernels<Order, Payload> kernels{call, stream};
      sort_segments<Order, Payload>(call, plan, scratch, order, stream, kernels);
      // The merges come first, because the radix sort's pairs (DigitProblem::kJoined) may overlap what is merged.
      if (plan.variant() == SortVariant::kLongSegments) sort_by_digits(call, plan, scratch, Disorder{}, stream);
      return;
    }
    default: break;
  }
  call.fail(std::string("plan: expected a variant that has kernels for these keys, got ") + plan.name());
}

}  // namespace sorting

void list_segmented_sort_shapes(const Call& call, KernelShapeList& list) {
  using namespace sorting;
  for_each_kind(call, "", {0, 4, 8}, [&](auto order, auto payload, const std::string& kind) {
    using Order = decltype(order);
    using Payload = decltype(payload);
    constexpr int kWidth = sizeof(typename Order::Word);
    constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
    const auto add = [&](const char* kernel, int64_t bytes, bool is_optional) {
      list.push_back({kernel + kind, {{bytes, bytes}}, is_optional});
    };
    add("sort of tiles", sizeof(SortShared<Order, Payload>), false);
    add("merge of tiles", sizeof(MergeShared<Order, Payload>), false);
    add("sort of few items", sizeof(CellShared<CellProblem<Order, Payload, kFewItemsShape.sort>>), false);
    add("sort of rows in small cells", sizeof(CellShared<PackedProblem<Order, Payload, kFewItemsShape.sort>>), false);
    if constexpr (merges_pairs(kWidth)) {
      add("sort of pairs of cells", row_shared_bytes(kWidth, kHasPayload), true);
    }
    if constexpr (kMergesLongRows<Order, Payload>) {
      add("sort of long rows", row_shared_bytes(kWidth, kHasPayload), true);
    }
    if constexpr (kHasLargeCells<Order, Payload>) {
      add("sort of rows in large cells", sizeof(CellShared<PackedProblem<Order, Payload, kOneCellShape.sort>>), false);
      add("sort of one cell", sizeof(CellShared<CellProblem<Order, Payload, kOneCellShape.sort>>), false);
    }
  });
  list_digit_shapes(call, list);
  list_row_digit_shapes(call, list);
}

void segmented_sort(const Call& call, cudaStream_t stream) {
  const SegmentedSortOperands operands(call);
  if (operands.segments.total() == 0) return;
  const SortPlan plan(operands, device_traits(call));
  Workspace workspace = workspace_of(call);
  const SortScratch scratch = plan.layout(workspace);
  switch (plan.variant()) {
    case SortVariant::kDigits:
    case SortVariant::kSegmentsByDigits:
      return sorting::sort_by_digits(call, plan, scratch, sorting::Disorder{}, stream);
    case SortVariant::kRowDigits:
    case SortVariant::kRowRanks: return sorting::sort_rows_by_digits(call, plan, stream);
    default: break;
  }
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width, [&](auto payload) {
      sorting::run_plan<decltype(order), decltype(payload)>(call, plan, scratch, order, stream);
    });
  });
}

}  // namespace mgpu::cuda
