#include "ops/intervals/operands.h"
#include "ops/load_balance/plan.h"
#include "ops/load_balance/read_work.h"
#include "ops/move_rows/read_rows.h"

namespace mgpu {

namespace {

Starts read_starts(const Call& call, const Arguments& in, const WorkList& work, const char* name) {
  return {call.index_vector(in[name], name), call.row_stride(in[name], work.objects, work.problems, name)};
}

}  // namespace

const Signature signature::interval_expand{
    .operands = {"values: any [objects, width]", "offsets: index [objects]", "total: index [1]?",
                 "fill_value: =result [1]"},
    .results = {"result: =values [size, width]"},
};

IntervalExpandOperands::IntervalExpandOperands(const Call& call) {
  const Arguments in(call, signature::interval_expand);
  const Array& result = in.result("result");
  work.problems = Call::batch(result, 2);
  out = read_rows(call, result, work.problems, "result");
  work.size = work.capacity = out.count;
  values = read_rows(call, in["values"], work.problems, "values");
  read_work(call, in, work, "offsets", "total");
  fill = read_fill(call, in["fill_value"], work.problems);
}

WorkTiles IntervalExpandOperands::layout(Workspace& workspace) const {
  return take_work_tiles(workspace, work, work_items(out.row_bytes, row_word(out.row_bytes)));
}

int64_t workspace::interval_expand(const Call& call) { return layout_bytes(IntervalExpandOperands(call)); }

RegionOrder IntervalMoveOperands::take_order(Workspace& workspace) const {
  RegionOrder order{};
  while ((out.count - 1) >> order.shift >= RegionOrder::kRegions) ++order.shift;
  order.sums = workspace.take<RegionOrder::Sum>(RegionOrder::kRegions + 1);
  order.touched = reinterpret_cast<int32_t*>(order.sums + RegionOrder::kRegions);
  order.ends = workspace.take<RegionOrder::Sum>(RegionOrder::kRegions);
  order.is_used = workspace.take<int32_t>(1);
  order.items = workspace.take<int64_t>(1);
  const auto take_intervals = [&](Workspace& from) {
    order.offsets = from.take<int32_t>(work.objects);
    order.gather_starts = from.take<int32_t>(work.objects);
    order.scatter_starts = from.take<int32_t>(work.objects);
  };
  if (!may_have_units()) {
    take_intervals(workspace);
    return order;
  }
  order.unit_counts = workspace.take<unsigned>(RegionOrder::kRegions + 1);
  order.is_mixed = reinterpret_cast<int32_t*>(order.unit_counts + RegionOrder::kRegions);
  // Intervals are sorted only if items are not, so both orders share memory.
  const auto take_units = [&](Workspace& from) {
    const int64_t places = ceil_div(out.count, int64_t{1} << order.shift) << order.shift;
    order.unit_moves = from.take<char>(places * unit_move_bytes(out.row_bytes));
  };
  Workspace intervals, units;
  take_intervals(intervals);
  take_units(units);
  const int64_t bytes = maximum(intervals.used(), units.used());
  char* const shared = workspace.take<char>(bytes);
  Workspace first(shared, bytes), second(shared, bytes);
  take_intervals(first);
  take_units(second);
  return order;
}

uint8_t* IntervalMoveOperands::take_mixed_tiles(Workspace& workspace) const {
  return workspace.take<uint8_t>(ceil_div(work.size, kUnitTile));
}

WorkTiles IntervalMoveOperands::layout(Workspace& workspace) const {
  if (adds) return {};
  if (has_likely_units()) {
    if (is_large()) take_mixed_tiles(workspace);
    return {};
  }
  if (has_order()) take_order(workspace);
  return take_work_tiles(workspace, work, work_items(out.row_bytes, row_word(out.row_bytes)));
}

const Signature signature::interval_gather{
    .operands = {"x: any [n, width]", "starts: index [objects]", "offsets: index [objects]", "total: index [1]?",
                 "fill_value: =result [1]"},
    .results = {"result: =x [size, width]"},
};

IntervalMoveOperands interval_gather_operands(const Call& call) {
  const Arguments in(call, signature::interval_gather);
  IntervalMoveOperands operands{};
  const Array& result = in.result("result");
  WorkList& work = operands.work;
  work.problems = Call::batch(result, 2);
  operands.out = read_rows(call, result, work.problems, "result");
  operands.x = read_rows(call, in["x"], work.problems, "x");
  work.size = work.capacity = operands.out.count;
  read_work(call, in, work, "offsets", "total");
  operands.gather = read_starts(call, in, work, "starts");
  operands.has_fill = true;
  operands.fill = read_fill(call, in["fill_value"], work.problems);
  return operands;
}

int64_t workspace::interval_gather(const Call& call) { return layout_bytes(interval_gather_operands(call)); }

const Signature signature::interval_move{
    .operands = {"x: any [n, width]", "gather_starts: index [objects] if gathers", "scatter_starts: index [objects]",
                 "offsets: index [objects]", "total: index [1]?", "into: =result [*]"},
    .results = {"result: =x [size, width]"},
    .attributes = {{"gathers"}, {"adds"}},
};

IntervalMoveOperands interval_move_operands(const Call& call) {
  const Arguments in(call, signature::interval_move);
  IntervalMoveOperands operands{};
  const Array& result = in.result("result");
  WorkList& work = operands.work;
  work.problems = Call::batch(result, 2);
  operands.out = read_rows(call, result, work.problems, "into");
  operands.x = read_rows(call, in["x"], work.problems, "x");
  const bool gathers = in.flag("gathers");
  // Intervals with disjoint targets move at most out.count items. Items past work.size are dropped.
  work.size = gathers ? maximum(operands.x.count, operands.out.count) : operands.x.count;
  work.capacity = work.size;
  read_work(call, in, work, "offsets", "total");
  if (gathers) operands.gather = read_starts(call, in, work, "gather_starts");
  operands.scatter = read_starts(call, in, work, "scatter_starts");
  operands.scatters = true;
  operands.adds = in.flag("adds");
  const Array& into = in["into"];
  if (into.rank() == 1) {
    operands.background = read_fill(call, into, work.problems);
    return operands;
  }
  // XLA usually gives the result the buffer of `into`.
  call.expect(into.bytes() == result.bytes(), "into: expected the shape of the result");
  operands.into = into.data == result.data ? nullptr : into.data;
  return operands;
}

int64_t workspace::interval_move(const Call& call) { return layout_bytes(interval_move_operands(call)); }

}  // namespace mgpu
