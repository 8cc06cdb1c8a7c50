// The calls of interval_expand, interval_gather and interval_move as their kernels see them. interval_scatter is an
// interval_move whose sources are the outputs' own positions.
#pragma once

#include "operands/load_balance.h"
#include "operands/rows.h"

namespace mgpu {

// A vector [.., objects], or absent (null): the outputs' own positions.
struct Starts {
  IndexVector at;
  int64_t stride = 0;

  // Where output `position` of object j lies, for starts of this problem.
  MGPU_HOST_DEVICE int64_t target(const WorkRow& row, int64_t problem, int64_t j, int64_t position) const {
    return at.data ? at[problem * stride + j] + (position - row.start(j)) : position;
  }
};

inline Starts read_starts(const Call& call, const WorkList& work, const Array& array, const char* name) {
  call.expect(Call::length(array) == work.objects, (std::string(name) + ": expected one for each offset").c_str());
  return {call.index_vector(array, name), call.row_stride(array, work.objects, work.problems, name)};
}

// Operands: values [.., objects, elements], offsets [.., objects], total [.., 1] or absent, fill_value [.., 1]. Result:
// [.., size, elements].
struct IntervalExpandOperands {
  WorkList work;
  Rows values;
  Fill fill;
  Rows out;

  explicit IntervalExpandOperands(const Call& call) {
    call.expect(call.operands.size() == 4, "expected 4 operands");
    const Array& result = call.results.at(0);
    work.problems = Call::batch(result, 2);
    out = read_rows(call, result, work.problems, "result");
    work.size = work.capacity = out.count;
    values = read_rows(call, call.operands[0], work.problems, "values");
    read_work(call, work, {call.operands[1], "offsets"}, {call.operands[2], "total"});
    fill = read_fill(call, call.operands[3], result, work.problems);
    call.expect(values.row_bytes == out.row_bytes, "values: expected rows of the result's width");
    call.expect(values.count == work.objects, "values: expected one row for each offset");
  }

  WorkTiles layout(Workspace& workspace) const { return take_work_tiles(workspace, work, is_wide_row(out.row_bytes)); }
};

// Intervals in the order of the regions of the result that they go to. The pieces of a 32-byte sector, which short
// intervals write at different times, then meet in the cache, and none is read from memory to be completed.
struct RegionOrder {
  static constexpr int kRegions = 128;
  // A region's intervals in the low half, their items in the high half, so that both come from one atomic addition.
  using Sum = unsigned long long;

  int shift;            // a target's region is target >> shift
  Sum* sums = nullptr;  // [kRegions]
  Sum* ends = nullptr;  // [kRegions], of the intervals that have their place
  int32_t* touched;     // how many regions the intervals of a block go to, summed over the blocks
  int32_t* is_used;     // whether that is so many that the order below is worth making
  int64_t* items;       // of all intervals
  int32_t* offsets;     // [objects], as the others, in the new order
  int32_t* gather_starts;
  int32_t* scatter_starts;
};

// What interval_gather and interval_move share: output `position` of object j moves row `gather.target` of x to row
// `scatter.target` of the result.
struct IntervalMoveOperands {
  WorkList work;
  Rows x;
  Starts gather;
  Starts scatter;
  bool has_fill;     // rows without a source are filled; otherwise the result keeps what it has
  const void* into;  // what to copy to the result first, or null
  Fill background;   // the element to fill the result with first; its address is null where there is none
  Fill fill;
  Rows out;
  bool scatters = false;

  // Whether sums of starts, offsets and positions need 64 bits to tell which rows there are.
  bool is_wide() const {
    constexpr int64_t kTooMany = int64_t{1} << 31;
    return work.offsets.wide || gather.at.wide || scatter.at.wide || maximum(work.size, x.count) >= kTooMany ||
           out.count >= kTooMany;
  }

  // Whether intervals are short, and go to a result larger than a cache.
  bool has_order() const {
    constexpr int64_t kLeastBytes = int64_t{1} << 25;
    constexpr int64_t kMostBytesAnInterval = 4096;
    const int64_t bytes = out.count * out.row_bytes;
    return scatters && work.problems == 1 && !is_wide() && !is_wide_row(out.row_bytes) && bytes >= kLeastBytes &&
           work.objects < int64_t{1} << 30 && bytes <= work.objects * kMostBytesAnInterval;
  }

  RegionOrder take_order(Workspace& workspace) const {
    RegionOrder order{};
    while ((out.count - 1) >> order.shift >= RegionOrder::kRegions) ++order.shift;
    order.sums = workspace.take<RegionOrder::Sum>(RegionOrder::kRegions + 1);
    order.touched = reinterpret_cast<int32_t*>(order.sums + RegionOrder::kRegions);
    order.ends = workspace.take<RegionOrder::Sum>(RegionOrder::kRegions);
    order.is_used = workspace.take<int32_t>(1);
    order.items = workspace.take<int64_t>(1);
    order.offsets = workspace.take<int32_t>(work.objects);
    order.gather_starts = workspace.take<int32_t>(work.objects);
    order.scatter_starts = workspace.take<int32_t>(work.objects);
    return order;
  }

  // The order, if there is one, comes first.
  WorkTiles layout(Workspace& workspace) const {
    if (has_order()) take_order(workspace);
    return take_work_tiles(workspace, work, is_wide_row(out.row_bytes));
  }
};

// Operands: x [.., n, elements], starts [.., objects], offsets [.., objects], total [.., 1] or absent, fill_value
// [.., 1]. Result: [.., size, elements].
inline IntervalMoveOperands interval_gather_operands(const Call& call) {
  call.expect(call.operands.size() == 5, "expected 5 operands");
  IntervalMoveOperands operands{};
  const Array& result = call.results.at(0);
  WorkList& work = operands.work;
  work.problems = Call::batch(result, 2);
  operands.out = read_rows(call, result, work.problems, "result");
  operands.x = read_rows(call, call.operands[0], work.problems, "x");
  work.size = work.capacity = operands.out.count;
  read_work(call, work, {call.operands[2], "offsets"}, {call.operands[3], "total"});
  operands.gather = read_starts(call, work, call.operands[1], "starts");
  operands.has_fill = true;
  operands.fill = read_fill(call, call.operands[4], result, work.problems);
  call.expect(operands.x.row_bytes == operands.out.row_bytes, "x: expected rows of the result's width");
  return operands;
}

// Operands: x [.., n, elements], gather_starts [.., objects] or absent, scatter_starts [.., objects], offsets
// [.., objects], total [.., 1] or absent, into [.., k, elements] or, where one element fills it, that alone: [1].
// Result:
// [.., k, elements].
inline IntervalMoveOperands interval_move_operands(const Call& call) {
  call.expect(call.operands.size() == 6, "expected 6 operands");
  IntervalMoveOperands operands{};
  const Array& result = call.results.at(0);
  WorkList& work = operands.work;
  work.problems = Call::batch(result, 2);
  operands.out = read_rows(call, result, work.problems, "into");
  operands.x = read_rows(call, call.operands[0], work.problems, "x");
  const bool gathers = call.attributes["gathers"] != 0;
  // Disjoint targets take no more items than there are; items whose targets are dropped may come on top.
  work.size = gathers ? maximum(operands.x.count, operands.out.count) : operands.x.count;
  work.capacity = work.size;
  read_work(call, work, {call.operands[3], "offsets"}, {call.operands[4], "total"});
  if (gathers) operands.gather = read_starts(call, work, call.operands[1], "gather_starts");
  operands.scatter = read_starts(call, work, call.operands[2], "scatter_starts");
  operands.scatters = true;
  call.expect(operands.x.row_bytes == operands.out.row_bytes, "x: expected rows of into's width");
  const Array& into = call.operands[5];
  if (into.rank() == 1) {
    operands.background = read_fill(call, into, result, work.problems);
    return operands;
  }
  // XLA gives the result into's buffer, but forgets to where it splits a call over devices.
  call.expect(into.bytes() == result.bytes(), "into: expected the shape of the result");
  operands.into = into.data == result.data ? nullptr : into.data;
  return operands;
}

}  // namespace mgpu
