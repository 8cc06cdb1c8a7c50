// reduce_rows and gathered_rows on the CPU. Threads share tiles of rows and segment ends. States are combined in the
// order of tiles, so the result does not depend on the number of threads. Rows are read in place, a few at a time. Each
// column is combined separately, by vector instructions over neighbouring columns. gathered_rows may also have weights.
#include <algorithm>
#include <vector>

#include "cpu/policy.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce/segment_tiles.h"
#include "ops/reduce_rows/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

// A `Running` for each column of rows. All columns have equally many parts, so they are combined by vector
// instructions.
template <typename Operator>
class RunningRows {
  using State = typename Operator::State;

 public:
  RunningRows(const Operator& op, int64_t columns) : op_(op), columns_(columns), levels_(kLevels * columns) { reset(); }

  void reset() {
    std::fill(levels_.begin(), levels_.end(), op_.identity());
    parts_ = 0;
  }

  void add(const State* part) {
    ++parts_;
    int64_t parts_of_level = 1;
    for (int level = 0; level < kLevels && parts_ % parts_of_level == 0; ++level, parts_of_level *= kFan) {
      State* const to = level_of(level);
      combine(to, part);
      if (level > 0) std::fill_n(to - columns_, columns_, op_.identity());
      part = to;
    }
  }

  void store(State* states) {
    std::copy_n(level_of(0), columns_, states);
    for (int level = 1; level < kLevels; ++level) {
      const State* const before = level_of(level);
      for (int64_t c = 0; c < columns_; ++c) states[c] = op_.combine(before[c], states[c]);
    }
  }

 private:
  static constexpr int kFan = 8;
  static constexpr int kLevels = 4;

  State* level_of(int level) { return levels_.data() + level * columns_; }
  void combine(State* __restrict to, const State* __restrict part) const {
    const Operator op = op_;
    for (int64_t c = 0; c < columns_; ++c) to[c] = op.combine(to[c], part[c]);
  }

  const Operator op_;
  const int64_t columns_;
  std::vector<State> levels_;
  int64_t parts_;
};

template <typename Operator, bool kWeighted>
class ReduceRows {
  using State = typename Operator::State;
  using Element = typename Operator::Element;

 public:
  ReduceRows(const GatheredRowsOperands& operands, const Operator& op)
      : op_(op),
        sources_(operands.sources),
        ends_(operands.ends()),
        x_(static_cast<const Element*>(operands.x)),
        weights_(static_cast<const Element*>(operands.weights)),
        groups_(operands.groups),
        result_{operands.result, operands.wide_result},
        columns_(std::min(sources_.width, cpu::kReduceRowsColumns)),
        slices_(ceil_div(sources_.width, columns_)) {}

  void run(cpu::Executor& executor) {
    const int64_t tile_units = std::max(cpu::kReduceRowsLeastUnits, cpu::kReduceRowsTile / columns_);
    const cpu::SegmentTiles tiles(ends_, tile_units, executor);
    // The states that each tile leaves for its neighbours: its first segment may begin in an earlier tile, and its last
    // one may continue in the next.
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
      RunningRows<Operator> running(op_, columns.count);
      std::vector<State> states(columns.count);
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t at = tile * width + columns.begin;
        if (const int64_t end = first_ends[tile]; end >= 0) {
          running.store(states.data());
          emit(end, columns, [&](int64_t c) { return op_.combine(states[c], before_first_end[at + c]); });
          running.reset();
        }
        running.add(&open[at]);
      }
    });
  }

 private:
  static constexpr int64_t kBlockRows = 32;      // rows combined one after the other; blocks are combined as a tree
  static constexpr int64_t kMostLinesAhead = 8;  // prefetched per row, so that a block of rows stays in the L1 cache
  // The numbers of columns that are combined at a time, with states in registers.
  static constexpr int kFewColumns = 8;
  static constexpr int kManyColumns = sizeof(State) > 8 ? 8 : 128 / sizeof(State);

  struct Columns {
    int64_t begin;
    int64_t count;
  };
  Columns slice(int64_t i) const { return {i * columns_, std::min(columns_, sources_.width - i * columns_)}; }

  // Combines a tile's rows, segment by segment. Returns the tile's first end, or -1. Stores the states of its first
  // segment, which may begin before the tile, and of its last segment, which may continue after it.
  int64_t reduce_tile(const cpu::SegmentTiles& tiles, int64_t tile, Columns columns, State* before_first_end,
                      State* open) const {
    std::vector<State> states(columns.count);
    RunningRows<Operator> running(op_, columns.count);
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

  [[gnu::noinline]] void reduce_range(int64_t begin, int64_t end, Columns columns, RunningRows<Operator>& running,
                                      State* states) const {
    if (end - begin <= kBlockRows) return reduce_block(begin, end, columns, states);
    running.reset();
    for (; begin < end; begin += kBlockRows) {
      reduce_block(begin, std::min(end, begin + kBlockRows), columns, states);
      running.add(states);
    }
    running.store(states);
  }

  [[gnu::noinline]] void reduce_block(int64_t begin, int64_t end, Columns columns, State* states) const {
    if (kWeighted || sources_.indices.data) {
      return columns.count < kFewColumns ? reduce_narrow(begin, end, columns, states)
                                         : reduce_listed(begin, end, columns, states);
    }
    const Operator op = op_;
    const Element* const x = x_;
    const int64_t width = sources_.width;
    over_columns(begin, end, columns.begin, columns.count, states,
                 [=](int64_t row, int64_t column) { return op.extract(x[row * width + column], row); });
  }

  // reduce_block for rows that are indexed or weighted.
  void reduce_listed(int64_t begin, int64_t end, Columns columns, State* states) const {
    const Operator op = op_;
    const int64_t width = sources_.width;
    int64_t rows[kBlockRows], entries[kBlockRows], count = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = sources_(i);
      rows[count] = row;
      entries[count] = i;
      count += row != RowSources::kNone;
    }
    const Element* items[kBlockRows];
    constexpr int64_t kLine = 64 / sizeof(Element);
    const int64_t ahead = std::min(columns.count, kMostLinesAhead * kLine);
    for (int64_t i = 0; i < count; ++i) {
      items[i] = x_ + rows[i] * width;
      for (int64_t c = 0; c < ahead; c += kLine) __builtin_prefetch(items[i] + columns.begin + c);
    }
    if constexpr (!kWeighted) {
      over_columns(0, count, columns.begin, columns.count, states,
                   [&](int64_t i, int64_t column) { return op.extract(items[i][column], rows[i]); });
    } else if (groups_ == width) {  // a weight for each element
      const Element* factors[kBlockRows];
      for (int64_t i = 0; i < count; ++i) factors[i] = weights_ + entries[i] * width;
      over_columns(0, count, columns.begin, columns.count, states, [&](int64_t i, int64_t column) {
        return op.extract(items[i][column], 0) * op.extract(factors[i][column], 0);
      });
    } else {
      const int64_t group_columns = width / groups_, last = columns.begin + columns.count;
      State factors[kBlockRows];
      for (int64_t column = columns.begin; column < last;) {
        const int64_t group = column / group_columns, stop = std::min(last, (group + 1) * group_columns);
        for (int64_t i = 0; i < count; ++i) factors[i] = op.extract(weights_[entries[i] * groups_ + group], 0);
        over_columns(0, count, column, stop - column, states + (column - columns.begin),
                     [&](int64_t i, int64_t c) { return op.extract(items[i][c], 0) * factors[i]; });
        column = stop;
      }
    }
  }

  // reduce_listed for few columns: each row is combined as soon as it is found.
  void reduce_narrow(int64_t begin, int64_t end, Columns columns, State* states) const {
    int64_t c = 0;
    for (; c + 4 <= columns.count; c += 4) reduce_found<4>(begin, end, columns.begin + c, states + c);
    for (; c < columns.count; ++c) reduce_found<1>(begin, end, columns.begin + c, states + c);
  }

  template <int kCount>
  void reduce_found(int64_t begin, int64_t end, int64_t column, State* states) const {
    const Operator op = op_;
    const RowSources sources = sources_;
    const Element* const x = x_ + column;
    const Element* factors[kCount] = {};
    if constexpr (kWeighted) {
      for (int c = 0; c < kCount; ++c) factors[c] = weights_ + (column + c) * groups_ / sources.width;
    }
    State sums[kCount];
    for (State& sum : sums) sum = op.identity();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = sources(i);
      if (row == RowSources::kNone) continue;
      for (int c = 0; c < kCount; ++c) {
        const State state = op.extract(x[row * sources.width + c], row);
        if constexpr (kWeighted) {
          sums[c] = op.combine(sums[c], state * op.extract(factors[c][i * groups_], row));
        } else {
          sums[c] = op.combine(sums[c], state);
        }
      }
    }
    for (int c = 0; c < kCount; ++c) states[c] = sums[c];
  }

  // Combines rows [begin, end) in each column: `state_of` gives a state by row and column.
  template <typename StateOf>
  void over_columns(int64_t begin, int64_t end, int64_t column, int64_t count, State* states, StateOf state_of) const {
    int64_t c = 0;
    for (; c + kManyColumns <= count; c += kManyColumns) {
      reduce_columns<kManyColumns>(begin, end, column + c, states + c, state_of);
    }
    for (; c + kFewColumns <= count; c += kFewColumns) {
      reduce_columns<kFewColumns>(begin, end, column + c, states + c, state_of);
    }
    for (; c < count; ++c) reduce_columns<1>(begin, end, column + c, states + c, state_of);
  }

  template <int kCount, typename StateOf>
  [[gnu::always_inline]] void reduce_columns(int64_t begin, int64_t end, int64_t column, State* states,
                                             const StateOf& state_of) const {
    const Operator op = op_;
    State sums[kCount];
    for (State& sum : sums) sum = op.identity();
    for (int64_t row = begin; row < end; ++row) {
      for (int i = 0; i < kCount; ++i) sums[i] = op.combine(sums[i], state_of(row, column + i));
    }
    for (int i = 0; i < kCount; ++i) states[i] = sums[i];
  }

  // Stores the result of the segment that end j closes; `state` gives the state of a column.
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
  const Element* const weights_;  // [items, groups]
  const int64_t groups_;
  const ResultVector<Operator> result_;
  const int64_t columns_;  // the columns of a slice
  const int64_t slices_;
};

void run_unweighted(const Call& call, const GatheredRowsOperands& operands, cpu::Executor& executor) {
  if (operands.is_empty()) return;
  operands.dispatch_reduction<false>(
      call, [&]<typename Operator>(const Operator& op) { ReduceRows<Operator, false>(operands, op).run(executor); });
}

}  // namespace

void cpu::reduce_rows(const Call& call, Executor& executor) {
  run_unweighted(call, GatheredRowsOperands(ReduceRowsOperands(call)), executor);
}

void cpu::gathered_rows(const Call& call, Executor& executor) {
  const GatheredRowsOperands operands(call);
  if (!operands.weights || operands.is_empty()) return run_unweighted(call, operands, executor);
  const auto run = [&]<typename Operator>(const Operator& op) {
    ReduceRows<Operator, true>(operands, op).run(executor);
  };
  dispatch_weighted<ArithmeticKind::kSum>(call, operands.dtype, operands.sum_dtype, run);
}

}  // namespace mgpu
