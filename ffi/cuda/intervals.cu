// Interval expand, gather, scatter and move on CUDA.
#include "cuda/intervals.cuh"
#include "cuda/move_rows.h"
#include "cuda/region_order.cuh"
#include "cuda/unit_intervals.cuh"
#include "operations.h"

namespace mgpu::cuda {

namespace {

// Launches what moves intervals of one item each, if they are.
void move_units(const Call& call, const RegionIntervals& intervals, const IntervalMoveOperands& operands,
                cudaStream_t stream) {
  const RegionOrder& order = intervals.order;
  check(call, cudaMemsetAsync(order.unit_counts, 0, sizeof(unsigned) * (RegionOrder::kRegions + 1), stream));
  dispatch_row_word(operands.out.row_bytes, [&](auto word) {
    using Word = decltype(word);
    const int64_t tiles = ceil_div<int64_t>(operands.work.objects, kOrderThreads * kUnitItems<Word>);
    put_units_in_order<Word>
        <<<static_cast<unsigned>(tiles), kOrderThreads, 0, stream>>>(intervals, operands.x, operands.out.count);
    check_launch(call);
    const int64_t places = ceil_div(operands.out.count, int64_t{1} << order.shift) << order.shift;
    launch_overlapping(call, stream, move_ordered_units<Word>, ceil_div<int64_t>(places, kMovedUnits), kOrderThreads, 0,
                       order, operands.out);
  });
}

// Launches what makes the order, in the first part of the workspace.
RegionOrder order_by_region(const Call& call, const IntervalMoveOperands& operands, Workspace& workspace,
                            cudaStream_t stream) {
  const RegionOrder order = operands.take_order(workspace);
  const auto data = [](IndexVector vector) { return static_cast<const int32_t*>(vector.data); };
  const RegionIntervals intervals{operands.work, data(operands.work.offsets), data(operands.gather.at),
                                  data(operands.scatter.at), order};
  const int blocks = static_cast<int>(ceil_div<int64_t>(operands.work.objects, kOrderTile));
  if (order.is_mixed) move_units(call, intervals, operands, stream);
  check(call, cudaMemsetAsync(order.sums, 0, sizeof(RegionOrder::Sum) * (RegionOrder::kRegions + 1), stream));
  count_regions<<<blocks, kOrderThreads, 0, stream>>>(intervals);
  check_launch(call);
  begin_regions<<<1, RegionOrder::kRegions, 0, stream>>>(order, blocks);
  check_launch(call);
  place_intervals<<<blocks, kOrderThreads, 0, stream>>>(intervals);
  check_launch(call);
  return order;
}

// Moves intervals that may have one length, and others, by one kernel.
template <typename Route>
void launch_likely_units(const Call& call, const IntervalMoveOperands& operands, const Route& route,
                         cudaStream_t stream) {
  dispatch_row_word(operands.out.row_bytes, [&](auto word) {
    using Word = decltype(word);
    auto kernel = move_likely_units<1, Word, Route>;
    if constexpr (!Route::kScatters) {
      if (operands.unit_length() == 2) kernel = move_likely_units<2, Word, Route>;
    }
    const int64_t tiles = ceil_div<int64_t>(operands.work.size, kWorkThreads * kUnitMoves);
    launch_overlapping(call, stream, kernel, tiles, kWorkThreads, 0, operands.work, route);
  });
}

template <bool kGathers, bool kScatters>
void move(const Call& call, const IntervalMoveOperands& operands, cudaStream_t stream) {
  if (operands.is_wide()) {
    call.expect(operands.has_wide_starts(),
                "starts and offsets: expected int64, as one of them is or there are many rows");
    return move_rows(call, operands, MoveRoute<kGathers, kScatters, uint64_t>(operands), stream);
  }
  const MoveRoute<kGathers, kScatters, uint32_t> route(operands);
  const bool is_short = ShortWork::fits(operands.work, 1);
  if (!is_short && operands.has_likely_units()) return launch_likely_units(call, operands, route, stream);
  move_rows(call, operands, route, stream);
}

// Moves intervals in the order of their targets' regions.
void move_in_order(const Call& call, IntervalMoveOperands operands, cudaStream_t stream) {
  if (!operands.gather.at.data) operands.gather.at = operands.work.offsets;  // outputs come from their own positions
  MoveRoute<true, true, uint32_t> route(operands);
  Workspace workspace = workspace_of(call);
  route.order = order_by_region(call, operands, workspace, stream);
  operands.work.is_replaced = route.order.is_used;
  operands.work.other_offsets = {route.order.offsets};
  operands.work.other_count = route.order.items;
  move_rows(call, operands, route, stream);
}

// Gathers intervals of one length, if they have it.
void gather_units(const Call& call, IntervalMoveOperands operands, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const UnitGather units = operands.take_unit_gather(workspace);
  check(call, cudaMemsetAsync(units.is_done, 0xff, 2 * sizeof(int64_t), stream));
  const WorkList& work = operands.work;
  const auto* const starts = static_cast<const int32_t*>(operands.gather.at.data);
  const bool is_one = operands.unit_length() == 1;
  const int64_t sweeps = gather_sweeps(operands.x, work.size);
  const int64_t part = ceil_div(operands.x.count, sweeps);
  dispatch_row_word(operands.out.row_bytes, [&](auto word) {
    using Word = decltype(word);
    const auto first = is_one ? gather_intervals_of<1, true, Word> : gather_intervals_of<2, true, Word>;
    const auto next = is_one ? gather_intervals_of<1, false, Word> : gather_intervals_of<2, false, Word>;
    const int64_t tiles = ceil_div<int64_t>(work.size, kWorkThreads * kGatheredUnits);
    for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
      const Range<int64_t> rows{sweep * part, minimum((sweep + 1) * part, operands.x.count)};
      launch_overlapping(call, stream, sweep == 0 ? first : next, tiles, kWorkThreads, 0, work, starts, operands.x,
                         rows, operands.fill, operands.out, units.is_done);
    }
  });
  operands.work.is_replaced = units.is_done;
  operands.work.other_offsets = work.offsets;
  operands.work.other_count = units.none;
  MoveRoute<true, false, uint32_t> route(operands);
  route.is_gathered = units.is_done;
  move_rows(call, operands, route, stream);
}

void fill(const Call& call, const Array& result, const Fill& element, cudaStream_t stream) {
  constexpr int64_t kBlockBytes = int64_t{kWorkThreads} * 16 * 8;
  const int64_t blocks = ceil_div(result.bytes(), kBlockBytes);
  if (blocks == 0) return;
  fill_array<<<static_cast<unsigned>(minimum<int64_t>(blocks, 1 << 20)), kWorkThreads, 0, stream>>>(
      result.as<char>(), result.bytes(), element);
  check_launch(call);
}

}  // namespace

void interval_expand(const Call& call, cudaStream_t stream) {
  const IntervalExpandOperands operands(call);
  const ExpandRoute route{operands.values, operands.fill, operands.out};
  const auto launch = [&](auto word, const WorkList& work, const WorkTiles& tiles, int64_t blocks) {
    launch_overlapping(call, stream, expand_words<decltype(word)>, blocks, kWorkThreads, 0, work, tiles, route);
  };
  move_rows(call, operands, route, stream, launch);
}

void interval_gather(const Call& call, cudaStream_t stream) {
  const IntervalMoveOperands operands = interval_gather_operands(call);
  if (operands.has_unit_gather()) return gather_units(call, operands, stream);
  move<true, false>(call, operands, stream);
}

void interval_move(const Call& call, cudaStream_t stream) {
  const IntervalMoveOperands operands = interval_move_operands(call);
  const Array& result = call.results[0];
  if (operands.into) {
    check(call, cudaMemcpyAsync(result.data, operands.into, result.bytes(), cudaMemcpyDeviceToDevice, stream));
  }
  if (operands.background.data) fill(call, result, operands.background, stream);
  if (operands.has_order()) return move_in_order(call, operands, stream);
  operands.gather.at.data ? move<true, true>(call, operands, stream) : move<false, true>(call, operands, stream);
}

}  // namespace mgpu::cuda
