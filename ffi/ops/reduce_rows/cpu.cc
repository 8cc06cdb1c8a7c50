// reduce_rows on the CPU: tiles of rows and segment ends spread over threads, their states combined in tile order, so
// the result does not depend on the number of threads. Rows are read where they lie, a few at a time, and each column
// is combined on its own, by vector instructions over neighbouring columns.
#include <algorithm>
#include <vector>

#include "cpu/fold.h"
#include "cpu/policy.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce/segment_tiles.h"
#include "ops/reduce_rows/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

template <typename Operator>
class ReduceRows {
  using State = typename Operator::State;
  using Element = typename Operator::Element;

 public:
  ReduceRows(const ReduceRowsOperands& operands, const Operator& op)
      : op_(op),
        sources_(operands.sources),
        ends_(operands.ends()),
        x_(static_cast<const Element*>(operands.x)),
        result_{operands.result, operands.wide_result},
        columns_(std::min(sources_.width, cpu::kReduceRowsColumns)),
        slices_(ceil_div(sources_.width, columns_)) {}

  void run(cpu::Executor& executor) {
    const int64_t tile_units = std::max(cpu::kReduceRowsLeastUnits, cpu::kReduceRowsTile / columns_);
    const cpu::SegmentTiles tiles(ends_, tile_units, executor);
    // What each tile leaves for its neighbours: its first segment may have begun before it, its last may go on after.
    const int64_t width = sources_.width;
    std::vector<int64_t> first_ends(tiles.count, -1);
    std::vector<State> before_first_end(tiles.count * width), open(tiles.count * width);
    cpu::parallel_for(executor, tiles.count * slices_, [&](int64_t task) {
      const int64_t tile = task / slices_;
      const Columns columns = slice(task - tile * slices_);
      const int64_t at = tile * width + columns.begin;
      const int64_t first_end = reduce_tile(tiles, tile, columns, &before_first_end[at], &open[at]);
      if (columns.begin == 0) first_ends[tile] = first_end;
    });
    cpu::parallel_for(executor, slices_, [&](int64_t i) {
      const Columns columns = slice(i);
      std::vector<cpu::Running<Operator>> running(columns.count, cpu::Running<Operator>(op_));
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t at = tile * width + columns.begin;
        if (const int64_t end = first_ends[tile]; end >= 0) {
          emit(end, columns, [&](int64_t c) { return op_.combine(running[c].state(), before_first_end[at + c]); });
          for (auto& of_column : running) of_column.reset();
        }
        for (int64_t c = 0; c < columns.count; ++c) running[c].add(open[at + c]);
      }
    });
  }

 private:
  static constexpr int64_t kBlockRows = 32;  // combined one after the other; blocks are combined as a tree
  // Columns whose states stay in registers.
  static constexpr int kFewColumns = 8;
  static constexpr int kManyColumns = sizeof(State) > 8 ? 8 : 128 / sizeof(State);

  struct Columns {
    int64_t begin;
    int64_t count;
  };
  Columns slice(int64_t i) const { return {i * columns_, std::min(columns_, sources_.width - i * columns_)}; }

  // Combines a tile's rows, segment by segment. Returns the first end in it, or -1, and gives the states of its first
  // segment, which may have begun before it, and of its last, which may go on after it.
  int64_t reduce_tile(const cpu::SegmentTiles& tiles, int64_t tile, Columns columns, State* before_first_end,
                      State* open) const {
    std::vector<State> states(columns.count);
    std::vector<cpu::Running<Operator>> running(columns.count, cpu::Running<Operator>(op_));
    int64_t first_end = -1;
    int64_t begin = tiles.items_before[tile];
    const int64_t last_item = tiles.items_before[tile + 1], last_end = tiles.ends_before(tile + 1);
    for (int64_t j = tiles.ends_before(tile); j < last_end; ++j) {
      const int64_t end = clamp(ends_[j], begin, last_item);
      if (first_end < 0) {
        first_end = j;
        reduce_range(begin, end, columns, running, before_first_end);
      } else {
        reduce_range(begin, end, columns, running, states.data());
        emit(j, columns, [&](int64_t c) { return states[c]; });
      }
      begin = end;
    }
    reduce_range(begin, last_item, columns, running, open);
    return first_end;
  }

  [[gnu::noinline]] void reduce_range(int64_t begin, int64_t end, Columns columns,
                                      std::vector<cpu::Running<Operator>>& running, State* states) const {
    if (end - begin <= kBlockRows) return reduce_block(begin, end, columns, states);
    for (auto& of_column : running) of_column.reset();
    for (; begin < end; begin += kBlockRows) {
      reduce_block(begin, std::min(end, begin + kBlockRows), columns, states);
      for (int64_t c = 0; c < columns.count; ++c) running[c].add(states[c]);
    }
    for (int64_t c = 0; c < columns.count; ++c) states[c] = running[c].state();
  }

  [[gnu::noinline]] void reduce_block(int64_t begin, int64_t end, Columns columns, State* states) const {
    if (sources_.indices.data) return gather_block(begin, end, columns, states);
    int64_t c = 0;
    for (; c + kManyColumns <= columns.count; c += kManyColumns) {
      reduce_columns<kManyColumns>(begin, end, columns.begin + c, states + c);
    }
    for (; c + kFewColumns <= columns.count; c += kFewColumns) {
      reduce_columns<kFewColumns>(begin, end, columns.begin + c, states + c);
    }
    for (; c < columns.count; ++c) reduce_columns<1>(begin, end, columns.begin + c, states + c);
  }

  template <int kCount>
  void reduce_columns(int64_t begin, int64_t end, int64_t column, State* states) const {
    const Operator op = op_;
    State sums[kCount];
    for (State& sum : sums) sum = op.identity();
    const Element* items = x_ + begin * sources_.width + column;
    for (int64_t row = begin; row < end; ++row, items += sources_.width) {
      for (int i = 0; i < kCount; ++i) sums[i] = op.combine(sums[i], op.extract(items[i], row));
    }
    for (int i = 0; i < kCount; ++i) states[i] = sums[i];
  }

  void gather_block(int64_t begin, int64_t end, Columns columns, State* states) const {
    const Operator op = op_;
    std::fill_n(states, columns.count, op.identity());
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = sources_(i);
      if (row == RowSources::kNone) continue;
      const Element* const items = x_ + row * sources_.width + columns.begin;
      for (int64_t c = 0; c < columns.count; ++c) states[c] = op.combine(states[c], op.extract(items[c], row));
    }
  }

  // Stores what segment end j closes; `state` gives the state of a column.
  template <typename StateOf>
  void emit(int64_t j, Columns columns, StateOf state) const {
    const int64_t entry = ends_.entry(j);
    if (entry < 0) return;
    const int64_t row_begin = ends_.row(j) * sources_.count;
    const int64_t at = entry * sources_.width + columns.begin;
    for (int64_t c = 0; c < columns.count; ++c) result_.store(at + c, op_.finish(state(c), row_begin));
  }

  const Operator op_;
  const RowSources sources_;
  const SegmentEnds ends_;
  const Element* const x_;
  const ResultVector<Operator> result_;
  const int64_t columns_;  // of a slice
  const int64_t slices_;
};

}  // namespace

void cpu::reduce_rows(const Call& call, Executor& executor) {
  const ReduceRowsOperands operands(call);
  if (operands.segments.rows * operands.segments.heads_count * operands.sources.width == 0) return;
  operands.dispatch_reduction<false>(call, [&](const auto& op) { ReduceRows(operands, op).run(executor); });
}

}  // namespace mgpu
