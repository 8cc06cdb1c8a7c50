// Threads share tiles of rows and segment ends. States are combined in the order of tiles, so the result does not
// depend on the number of threads.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "cpu/policy.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce/segment_tiles.h"
#include "ops/reduce_rows/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

struct Columns {
  int64_t begin;
  int64_t count;
};

// Reduces segments of rows. The operator is called by virtual functions, on blocks of rows
// and on arrays of states as bytes, so this class is compiled once for all operators.
class SegmentedRows {
 public:
  SegmentedRows(const GatheredRowsOperands& operands, int64_t state_bytes)
      : sources_(operands.sources),
        ends_(operands.ends()),
        state_bytes_(state_bytes),
        columns_(std::min(sources_.width, cpu::kReduceRowsColumns)),
        slices_(ceil_div(sources_.width, columns_)) {}

  void run(cpu::Executor& executor) const {
    const int64_t tile_units = std::max(cpu::kReduceRowsLeastUnits, cpu::kReduceRowsTile / columns_);
    const cpu::SegmentTiles tiles(ends_, tile_units, executor);
    const int64_t row_bytes = sources_.width * state_bytes_;
    std::vector<int64_t> first_ends(tiles.count, -1);
    std::vector<std::byte> before_first_end(tiles.count * row_bytes), open(tiles.count * row_bytes);
    cpu::parallel_for(executor, tiles.count * slices_, [&](int64_t task) {
      const int64_t tile = task / slices_;
      const Columns columns = slice(task - tile * slices_);
      const int64_t at = tile * row_bytes + columns.begin * state_bytes_;
      const int64_t first_end = reduce_tile(tiles, tile, columns, &before_first_end[at], &open[at]);
      if (columns.begin == 0) first_ends[tile] = first_end;
    });
    cpu::parallel_for(executor, slices_, [&](int64_t i) {
      const Columns columns = slice(i);
      Running running(*this, columns.count);
      std::vector<std::byte> states(columns.count * state_bytes_);
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t at = tile * row_bytes + columns.begin * state_bytes_;
        if (const int64_t end = first_ends[tile]; end >= 0) {
          running.store(states.data());
          combine(states.data(), &before_first_end[at], states.data(), columns.count);
          emit(end, columns, states.data());
          running.reset();
        }
        running.add(&open[at]);
      }
    });
  }

 protected:
  ~SegmentedRows() = default;
  static constexpr int64_t kBlockRows = 32;  // rows combined one after the other; blocks are combined as a tree

  // Items [begin, end) are of one segment, at most kBlockRows, and combined in their order.
  virtual void reduce_block(int64_t begin, int64_t end, Columns columns, std::byte* states) const = 0;
  virtual void fill(std::byte* states, int64_t count) const = 0;  // with the identity
  // Combines each state of a with that of b. `to` may be a or b.
  virtual void combine(const std::byte* a, const std::byte* b, std::byte* to, int64_t count) const = 0;
  virtual void store(int64_t at, const std::byte* states, int64_t count, int64_t row_begin) const = 0;

  const RowSources sources_;
  const SegmentEnds ends_;

 private:
  // A `Running` (cpu/fold.h) for each column of rows.
  class Running {
   public:
    Running(const SegmentedRows& rows, int64_t columns)
        : rows_(rows), columns_(columns), bytes_(columns * rows.state_bytes_), levels_(kLevels * bytes_) {
      reset();
    }

    void reset() {
      rows_.fill(levels_.data(), kLevels * columns_);
      parts_ = 0;
    }

    void add(const std::byte* part) {
      ++parts_;
      int64_t parts_of_level = 1;
      for (int level = 0; level < kLevels && parts_ % parts_of_level == 0; ++level, parts_of_level *= kFan) {
        std::byte* const to = level_of(level);
        rows_.combine(to, part, to, columns_);
        if (level > 0) rows_.fill(to - bytes_, columns_);
        part = to;
      }
    }

    void store(std::byte* states) {
      std::copy_n(level_of(0), bytes_, states);
      for (int level = 1; level < kLevels; ++level) rows_.combine(level_of(level), states, states, columns_);
    }

   private:
    static constexpr int kFan = 8;
    static constexpr int kLevels = 4;

    std::byte* level_of(int level) { return levels_.data() + level * bytes_; }

    const SegmentedRows& rows_;
    const int64_t columns_;
    const int64_t bytes_;
    std::vector<std::byte> levels_;
    int64_t parts_;
  };

  Columns slice(int64_t i) const { return {i * columns_, std::min(columns_, sources_.width - i * columns_)}; }

  // Returns the tile's first end, or -1. Stores the states of its first segment, which may begin before the tile, and
  // of its last segment, which may continue after it.
  int64_t reduce_tile(const cpu::SegmentTiles& tiles, int64_t tile, Columns columns, std::byte* before_first_end,
                      std::byte* open) const {
    std::vector<std::byte> states(columns.count * state_bytes_);
    Running running(*this, columns.count);
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
        emit(j, columns, states.data());
      }
      begin = end;
    }
    reduce_range(begin, last_item, columns, running, open);
    return first_end;
  }

  void reduce_range(int64_t begin, int64_t end, Columns columns, Running& running, std::byte* states) const {
    if (end - begin <= kBlockRows) return reduce_block(begin, end, columns, states);
    running.reset();
    for (; begin < end; begin += kBlockRows) {
      reduce_block(begin, std::min(end, begin + kBlockRows), columns, states);
      running.add(states);
    }
    running.store(states);
  }

  void emit(int64_t j, Columns columns, const std::byte* states) const {
    const int64_t entry = ends_.entry(j);
    if (entry < 0) return;
    store(entry * sources_.width + columns.begin, states, columns.count, ends_.row(j) * sources_.count);
  }

  const int64_t state_bytes_;
  const int64_t columns_;  // the columns of a slice
  const int64_t slices_;
};

constexpr int64_t kItemsAhead = 8;  // a row is fetched this many items before it is combined

// Lists the items of [begin, end) that have a row, with their rows. If rows are gathered, `rows` goes on with
// kItemsAhead rows to fetch ahead. Returns the number of listed items.
int64_t list_rows(const RowSources& sources, int64_t begin, int64_t end, int64_t* rows, int64_t* items) {
  if (!sources.indices.data) {
    for (int64_t i = begin; i < end; ++i) *rows++ = *items++ = i;
    return end - begin;
  }
  const int64_t number = sources.count, first = begin < end ? sources.problem_begin(begin) : 0;
  const int64_t last = std::min(end + kItemsAhead, sources.length * sources.problems);
  int64_t count = 0;
  with_width<void>(sources.indices, [&](auto indices) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = indices[i];
      rows[count] = first + row;
      items[count] = i;
      count += row >= 0 && row < number;
    }
    std::fill_n(rows + count, kItemsAhead, first);
    for (int64_t i = end; i < last; ++i) {
      const int64_t row = indices[i];
      if (row >= 0 && row < number) rows[count + i - end] = first + row;
    }
  });
  return count;
}

template <typename Operator>
constexpr bool kIsArithmetic = requires(const Operator& op) { op.multiplies(); };

template <typename Operator, bool kWeighted>
class ReduceRows final : public SegmentedRows {
  using State = typename Operator::State;
  using Element = typename Operator::Element;

 public:
  ReduceRows(const GatheredRowsOperands& operands, const Operator& op)
      : SegmentedRows(operands, sizeof(State)),
        op_(op),
        x_(static_cast<const Element*>(operands.x)),
        weights_(static_cast<const Element*>(operands.weights)),
        groups_(operands.groups),
        group_columns_(kWeighted ? sources_.width / groups_ : sources_.width),
        result_(results_of<Operator>(operands)) {
#if defined(__x86_64__)
    combines_whole_rows_ = __builtin_cpu_supports("avx2");
#endif
  }

 private:
  static constexpr int64_t kMostLinesAhead = 8;  // the most lines of a row that are fetched
  // Limits of columns in reduce_block. kFewStates is for operators other than sums and products.
  static constexpr int64_t kFewStates = 7;
  static constexpr int kMostOtherStates = 4;  // columns that reduce_columns combines at once by such operators
  static constexpr int64_t kFewColumns = 32;
  static constexpr int64_t kFewGatheredColumns = 16;

  static State* states_of(std::byte* states) { return reinterpret_cast<State*>(states); }
  static const State* states_of(const std::byte* states) { return reinterpret_cast<const State*>(states); }

  void fill(std::byte* states, int64_t count) const override { std::fill_n(states_of(states), count, op_.identity()); }

  void combine(const std::byte* a, const std::byte* b, std::byte* to, int64_t count) const override {
    const State *const a_states = states_of(a), *const b_states = states_of(b);
    State* const states = states_of(to);
    const Operator op = op_;
#pragma GCC ivdep  // `to` is a or b, or overlaps neither
    for (int64_t c = 0; c < count; ++c) states[c] = op.combine(a_states[c], b_states[c]);
  }

  void store(int64_t at, const std::byte* states, int64_t count, int64_t row_begin) const override {
    const State* const column_states = states_of(states);
    const Operator op = op_;
    const ResultVector<Operator> result = result_;
#pragma GCC ivdep  // results overlap no states
    for (int64_t c = 0; c < count; ++c) result.store(at + c, op.finish(column_states[c], row_begin));
  }

  struct Item {
    const Element* data;  // from a slice's first column on
    int64_t row;
    int64_t i;
  };

  // A call gives the state of a column. With weights, `factor` is the weight of all these elements.
  struct Row {
    const Element* data;
    int64_t number;
    State factor;
    State operator()(const Operator& op, int64_t c) const {
      const State state = op.extract(data[c], number);
      if constexpr (kWeighted) return state * factor;
      return state;
    }
  };

  // Like Row, if each element has a weight.
  struct ProductRow {
    const Element* data;
    const Element* factors;
    State operator()(const Operator& op, int64_t c) const { return op.extract(data[c], 0) * op.extract(factors[c], 0); }
  };

  void reduce_block(int64_t begin, int64_t end, Columns columns, std::byte* bytes) const override {
    State* const states = states_of(bytes);
    const int64_t few = !kIsArithmetic<Operator> ? kFewStates
                        : sources_.indices.data  ? kFewGatheredColumns
                                                 : kFewColumns;
    const bool has_product_rows = kWeighted && group_columns_ == 1 && columns.count >= 4;
    if ((has_product_rows || std::min(columns.count, group_columns_) > few) && combines_whole_rows_) {
      return combine_whole_rows(begin, end, columns, states);
    }
    if (group_columns_ == sources_.width) return reduce_group(begin, end, columns, 0, states);
    for (int64_t done = 0; done < columns.count;) {
      const int64_t first = columns.begin + done, group = first / group_columns_;
      const int64_t count = std::min((group + 1) * group_columns_ - first, columns.count - done);
      reduce_group(begin, end, {first, count}, group, states + done);
      done += count;
    }
  }

  // Like reduce_block, for columns of one group.
  void reduce_group(int64_t begin, int64_t end, Columns columns, int64_t group, State* states) const {
    constexpr int kMost = !kIsArithmetic<Operator> ? kMostOtherStates : sizeof(State) > 8 ? 8 : 64 / sizeof(State);
    const Element* const weights = weights_ + group;
    if (sources_.indices.data) {
      const auto source = [sources = sources_](int64_t i) { return sources(i); };
      reduce_columns<kMost, true>(begin, end, columns, weights, states, source);
    } else {
      reduce_columns<kMost, false>(begin, end, columns, weights, states, [](int64_t i) { return i; });
    }
  }

  // The last kCount columns may overlap the ones before.
  template <int kCount, bool kHasNone, typename Source>
  void reduce_columns(int64_t begin, int64_t end, Columns columns, const Element* weights, State* states,
                      const Source& source) const {
    if constexpr (kCount > 1) {
      if (columns.count < kCount) {
        return reduce_columns<kCount / 2, kHasNone>(begin, end, columns, weights, states, source);
      }
    }
    const Operator op = op_;
    const int64_t width = sources_.width, groups = groups_;
    for (int64_t column = 0; column < columns.count; column += kCount) {
      const int64_t first = std::min(column, columns.count - kCount);
      const Element* const x = x_ + columns.begin + first;
      State sums[kCount];
      for (State& sum : sums) sum = op.identity();
      // Sums and products take an identity for an item without a row: with a branch around the combination, GCC keeps
      // the states in memory.
      Element identities[kCount] = {};
      if constexpr (kIsArithmetic<Operator>) std::fill_n(identities, kCount, narrow_to(op.identity(), Element{}));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t number = source(i);
        const bool is_none = kHasNone && number == RowSources::kNone;
        if (!kIsArithmetic<Operator> && is_none) continue;
        Row row{is_none ? identities : x + number * width, number, {}};
        if constexpr (kWeighted) row.factor = is_none ? State{0} : op.extract(weights[i * groups], 0);
        for (int c = 0; c < kCount; ++c) sums[c] = op.combine(sums[c], row(op, c));
      }
      for (int c = 0; c < kCount; ++c) states[first + c] = sums[c];
    }
  }

  // Combines four rows at a time with the states of all columns. Results are the same with and without AVX2, as no
  // operation is fused.
#if defined(__x86_64__)
  [[gnu::target("avx2")]]
#endif
  void combine_whole_rows(int64_t begin, int64_t end, Columns columns, State* states) const {
    const Element* const x = x_ + columns.begin;
    const int64_t width = sources_.width;
    int64_t rows[kBlockRows + kItemsAhead], items[kBlockRows];
    const int64_t count = list_rows(sources_, begin, end, rows, items);
    const auto item = [=, &rows, &items](int64_t i) { return Item{x + rows[i] * width, rows[i], items[i]}; };
    std::fill_n(states, columns.count, op_.identity());
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      if (sources_.indices.data) {
        for (int k = 0; k < 4; ++k) fetch(x + rows[i + kItemsAhead + k] * width, columns.count);
      }
      combine_items(columns, states, item(i), item(i + 1), item(i + 2), item(i + 3));
    }
    for (; i < count; ++i) combine_items(columns, states, item(i));
  }

  static void fetch(const Element* row, int64_t columns) {
    constexpr int64_t kLine = 64 / sizeof(Element);
    const int64_t count = std::min(columns, kMostLinesAhead * kLine);
    for (int64_t c = 0; c < count; c += kLine) __builtin_prefetch(row + c);
  }

  // Combines each item's row, multiplied by the item's weights if there are any.
  template <typename... Items>
  [[gnu::always_inline]] void combine_items(Columns columns, State* states, const Items&... items) const {
    if constexpr (!kWeighted) {
      combine_rows(columns.count, states, Row{items.data, items.row, {}}...);
    } else if (group_columns_ == 1) {
      const Element* const weights = weights_ + columns.begin;
      combine_rows(columns.count, states, ProductRow{items.data, weights + items.i * groups_}...);
    } else {
      const int64_t last = columns.begin + columns.count;
      for (int64_t column = columns.begin; column < last;) {
        const int64_t group = column / group_columns_, stop = std::min(last, (group + 1) * group_columns_);
        const int64_t c = column - columns.begin;
        combine_rows(stop - column, states + c,
                     Row{items.data + c, items.row, op_.extract(weights_[items.i * groups_ + group], 0)}...);
        column = stop;
      }
    }
  }

  template <typename... Rows>
  [[gnu::always_inline]] void combine_rows(int64_t count, State* __restrict states, const Rows... rows) const {
    const Operator op = op_;
    for (int64_t c = 0; c < count; ++c) {
      State state = states[c];
      ((state = op.combine(state, rows(op, c))), ...);
      states[c] = state;
    }
  }

  const Operator op_;
  const Element* const x_;
  const Element* const weights_;  // [items, groups]
  const int64_t groups_;
  const int64_t group_columns_;
  const ResultVector<Operator> result_;
  bool combines_whole_rows_ = true;
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
