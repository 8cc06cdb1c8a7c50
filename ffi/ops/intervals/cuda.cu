#include "cuda/block/vectors.cuh"
#include "ops/intervals/add_intervals.cuh"
#include "ops/intervals/destination_buckets.cuh"
#include "ops/intervals/dispatch_added.h"
#include "ops/intervals/kernels.cuh"
#include "ops/intervals/unit_intervals.cuh"
#include "ops/move_rows/launch.h"
#include "runtime/operations.h"

namespace mgpu::cuda {

namespace {

ArrayFill array_fill(const Call& call, const Fill& element) {
  const Array& result = call.results[0];
  return {result.as<char>(), element.data ? result.bytes() : 0, element};
}

void launch_fill(const Call& call, const ArrayFill& fill, cudaStream_t stream) {
  if (fill.bytes == 0) return;
  fill_array<<<static_cast<unsigned>(fill.blocks()), kWorkThreads, 0, stream>>>(fill);
  check_launch(call);
}

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

// Also fills the result if there is a background.
RegionOrder order_by_region(const Call& call, const IntervalMoveOperands& operands, Workspace& workspace,
                            cudaStream_t stream) {
  const RegionOrder order = operands.take_order(workspace);
  const auto data = [](IndexVector vector) { return static_cast<const int32_t*>(vector.data); };
  const RegionIntervals intervals{operands.work, data(operands.work.offsets), data(operands.gather.at),
                                  data(operands.scatter.at), order};
  const int blocks = static_cast<int>(ceil_div<int64_t>(operands.work.objects, kOrderTile));
  ArrayFill fill = array_fill(call, operands.background);
  if (order.is_mixed) {
    launch_fill(call, fill, stream);
    fill.bytes = 0;
    move_units(call, intervals, operands, stream);
  }
  check(call, cudaMemsetAsync(order.sums, 0, sizeof(RegionOrder::Sum) * (RegionOrder::kRegions + 1), stream));
  count_regions<<<blocks, kOrderThreads, 0, stream>>>(intervals);
  check_launch(call);
  launch_overlapping(call, stream, begin_regions, 1, RegionOrder::kRegions, 0, order, blocks);
  launch_overlapping(call, stream, place_intervals, blocks + fill.blocks(), kOrderThreads, 0, intervals, fill);
  return order;
}

template <int kLength, bool kIsLarge, typename Route>
void launch_likely_units(const Call& call, const IntervalMoveOperands& operands, const Route& route,
                         cudaStream_t stream) {
  const WorkList& work = operands.work;
  const uint32_t count = static_cast<uint32_t>(operands.x.count);
  dispatch_row_word(operands.out.row_bytes, [&](auto word) {
    using Word = decltype(word);
    const auto launch = [&](auto kernel, int64_t items, const auto&... arguments) {
      launch_overlapping(call, stream, kernel, ceil_div<int64_t>(work.size, kWorkThreads * items), kWorkThreads, 0,
                         arguments...);
    };
    const auto first = move_likely_units<kLength, kIsLarge, Word, Route>;
    if constexpr (kIsLarge) {
      Workspace workspace = workspace_of(call);
      uint8_t* const is_mixed = operands.take_mixed_tiles(workspace);
      const uint32_t size = static_cast<uint32_t>(ceil_div<int64_t>(count, operands.sweeps()));
      launch(first, kUnitMoves, work, route, RowPart{0, size}, is_mixed);
      for (uint32_t begin = size; begin < count; begin += size) {
        launch(gather_next_part<kLength, Word>, kUnitMoves, route.gather_starts.data, work, operands.x,
               RowPart{begin, minimum(size, count - begin)}, is_mixed, operands.out);
      }
      launch(gather_mixed_tiles<Word, Route>, kWordItems, work, route, is_mixed);
    } else {
      launch(first, kUnitMoves, work, route, RowPart{0, count}, nullptr);
    }
  });
}

template <typename Route>
void dispatch_likely_units(const Call& call, const IntervalMoveOperands& operands, const Route& route,
                           cudaStream_t stream) {
  const bool is_one = operands.unit_length() == 1;
  auto launch = is_one ? launch_likely_units<1, false, Route> : launch_likely_units<2, false, Route>;
  if constexpr (!Route::kScatters) {
    if (operands.is_large()) {
      launch = is_one ? launch_likely_units<1, true, Route> : launch_likely_units<2, true, Route>;
    }
  }
  launch(call, operands, route, stream);
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
  if (!is_short && operands.has_likely_units()) return dispatch_likely_units(call, operands, route, stream);
  move_rows(call, operands, route, stream);
}

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

template <int kColumns, typename Element>
void launch_add(const Call& call, const IntervalMoveOperands& operands, cudaStream_t stream) {
  const WorkList& work = operands.work;
  const int64_t width = operands.out.row_bytes / static_cast<int64_t>(sizeof(Element));
  const adding::Addition task{
      operands, adding::AddTiles(work.problems, operands.out.count, width / kColumns, adding::kUnits<kColumns>), width,
      static_cast<float>(work.objects) / static_cast<float>(operands.out.count)};
  const bool is_wide = operands.is_wide() || operands.x.count * width >= int64_t{1} << 31;
  const auto kernel =
      is_wide ? adding::add_intervals<kColumns, true, Element> : adding::add_intervals<kColumns, false, Element>;
  kernel<<<static_cast<unsigned>(task.tiles.blocks(work.problems)), adding::kThreads, 0, stream>>>(task);
  check_launch(call);
}

void add(const Call& call, const IntervalMoveOperands& operands, cudaStream_t stream) {
  if (call.results[0].bytes() == 0) return;
  dispatch_added(call, [&](auto element) {
    using Element = decltype(element);
    const bool has_vectors =
        operands.out.row_bytes % 16 == 0 && is_aligned(operands.x.data) && is_aligned(operands.out.data);
    has_vectors ? launch_add<16 / sizeof(Element), Element>(call, operands, stream)
                : launch_add<1, Element>(call, operands, stream);
  });
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
  move<true, false>(call, interval_gather_operands(call), stream);
}

void interval_move(const Call& call, cudaStream_t stream) {
  const IntervalMoveOperands operands = interval_move_operands(call);
  const Array& result = call.results[0];
  if (operands.into) {
    check(call, cudaMemcpyAsync(result.data, operands.into, result.bytes(), cudaMemcpyDeviceToDevice, stream));
  }
  if (operands.adds) return add(call, operands, stream);
  if (operands.has_order()) return move_in_order(call, operands, stream);
  launch_fill(call, array_fill(call, operands.background), stream);
  operands.gather.at.data ? move<true, true>(call, operands, stream) : move<false, true>(call, operands, stream);
}

}  // namespace mgpu::cuda
