#include "ops/move_rows/cpu.h"

#include <algorithm>

#include "ops/intervals/dispatch_added.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

template <int64_t kBytes>
void expand(const IntervalExpandOperands& operands, cpu::RowMover<kBytes> rows, cpu::Executor& executor) {
  const int64_t tile = cpu::rows_per_task(rows.width());
  cpu::for_each_work_tile(executor, operands.work, tile,
                          [&](int64_t problem, const WorkRow& row, Range<int64_t> outputs, int64_t live_end) {
                            const char* const values = operands.values.of_problem(problem);
                            char* const out = operands.out.of_problem(problem);
                            const std::vector<char> fill = cpu::fill_row(operands.fill, problem, rows.width());
                            for_each_run(row, {outputs.begin, live_end}, [&](int64_t object, Range<int64_t> run) {
                              rows.repeat(out, run, live_end,
                                          object < row.first ? fill.data() : values + object * rows.width());
                            });
                            rows.repeat(out, {live_end, outputs.end}, fill.data());
                          });
}

template <int64_t kBytes>
void move(const IntervalMoveOperands& operands, cpu::RowMover<kBytes> rows, cpu::Executor& executor) {
  const int64_t tile = cpu::rows_per_task(rows.width());
  cpu::for_each_work_tile(
      executor, operands.work, tile,
      [&](int64_t problem, const WorkRow& row, Range<int64_t> outputs, int64_t live_end) {
        const char* const x = operands.x.of_problem(problem);
        char* const out = operands.out.of_problem(problem);
        const std::vector<char> fill_row =
            operands.has_fill ? cpu::fill_row(operands.fill, problem, rows.width()) : std::vector<char>();
        const auto fill = [&](int64_t begin, int64_t end) {
          if (operands.has_fill) rows.repeat(out, {begin, end}, fill_row.data());
        };
        for_each_run(row, {outputs.begin, live_end}, [&](int64_t object, Range<int64_t> run) {
          if (object < row.first) return fill(run.begin, run.end);
          const int64_t source = operands.gather.target(row, problem, object, run.begin);
          const int64_t target = operands.scatter.target(row, problem, object, run.begin);
          // x must have the row, and the result a place for it.
          const int64_t begin = clamp<int64_t>(maximum(-source, -target), 0, run.size());
          const int64_t end = clamp(minimum(operands.x.count - source, operands.out.count - target), begin, run.size());
          fill(run.begin, run.begin + begin);
          rows.copy(out, target + begin, x, source + begin, end - begin);
          fill(run.begin + end, run.end);
        });
        fill(live_end, outputs.end);
      });
}

void move(const IntervalMoveOperands& operands, cpu::Executor& executor) {
  cpu::dispatch_row_bytes(operands.out.row_bytes,
                          [&](auto width) { move(operands, cpu::RowMover<width>{operands.out.row_bytes}, executor); });
}

void fill(const IntervalMoveOperands& operands, cpu::Executor& executor) {
  const Rows& out = operands.out;
  const std::vector<char> row = cpu::fill_row(operands.background, 0, out.row_bytes);
  const int64_t rows = operands.work.problems * out.count;
  const int64_t task_rows = cpu::rows_per_task(out.row_bytes);
  cpu::dispatch_row_bytes(out.row_bytes, [&](auto width) {
    const cpu::RowMover<width> mover{out.row_bytes};
    cpu::parallel_for(executor, ceil_div(rows, task_rows), [&](int64_t task) {
      mover.repeat(out.data, {task * task_rows, minimum(rows, (task + 1) * task_rows)}, row.data());
    });
  });
}

template <typename Element>
void add(const IntervalMoveOperands& operands, cpu::Executor& executor) {
  using Sum = std::conditional_t<std::is_same_v<Element, double>, double, float>;
  const Rows& out = operands.out;
  const int64_t width = out.row_bytes / static_cast<int64_t>(sizeof(Element));
  const int64_t tile = cpu::rows_per_task(out.row_bytes), tiles = ceil_div(out.count, tile);
  cpu::parallel_for(executor, operands.work.problems * tiles, [&](int64_t task) {
    const int64_t problem = task / tiles, first = (task - problem * tiles) * tile;
    const int64_t last = minimum(first + tile, out.count);
    const AddedIntervals<IndexVector> intervals(operands, problem);
    const Element* const x = reinterpret_cast<const Element*>(operands.x.of_problem(problem));
    Element* const results = reinterpret_cast<Element*>(out.of_problem(problem)) + first * width;
    if (const char* const fill = operands.background.data) {
      std::fill_n(results, (last - first) * width, *reinterpret_cast<const Element*>(fill));
    }
    std::vector<Sum> wide;
    Sum* sums = nullptr;
    if constexpr (std::is_same_v<Element, Sum>) {
      sums = results;
    } else {
      wide.resize((last - first) * width);
      sums = wide.data();
      for (size_t i = 0; i < wide.size(); ++i) sums[i] = widen(results[i]);
    }
    int64_t j = partition_point(int64_t{0}, intervals.count, [&](int64_t j) { return intervals.rows(j).end <= first; });
    for (; j < intervals.count; ++j) {
      const Range<int64_t> rows = intervals.rows(j);
      if (rows.begin >= last) break;
      const int64_t shift = intervals.source(j) - rows.begin;
      const int64_t begin = maximum(rows.begin, maximum(first, -shift));
      const int64_t end = minimum(rows.end, minimum(last, operands.x.count - shift));
      if (begin >= end) continue;
      const Element* const __restrict from = x + (begin + shift) * width;
      Sum* const __restrict to = sums + (begin - first) * width;
      for (int64_t i = 0; i < (end - begin) * width; ++i) to[i] += widen(from[i]);
    }
    for (size_t i = 0; i < wide.size(); ++i) results[i] = narrow_to(sums[i], Element{});
  });
}

}  // namespace

void cpu::interval_expand(const Call& call, Executor& executor) {
  const IntervalExpandOperands operands(call);
  dispatch_row_bytes(operands.out.row_bytes,
                     [&](auto width) { expand(operands, RowMover<width>{operands.out.row_bytes}, executor); });
}

void cpu::interval_gather(const Call& call, Executor& executor) { move(interval_gather_operands(call), executor); }
void cpu::interval_move(const Call& call, Executor& executor) {
  const IntervalMoveOperands operands = interval_move_operands(call);
  if (operands.into) std::copy_n(static_cast<const char*>(operands.into), call.results[0].bytes(), operands.out.data);
  if (operands.adds) {
    return dispatch_added(call, [&](auto element) { add<decltype(element)>(operands, executor); });
  }
  if (operands.background.data) fill(operands, executor);
  move(operands, executor);
}

}  // namespace mgpu
