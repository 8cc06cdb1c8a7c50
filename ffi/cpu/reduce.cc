// reduce and segmented_reduce on the CPU: fixed tiles spread over threads, their states combined in tile order, so the
// result does not depend on the number of threads.
#include "operands/reduce.h"

#include <algorithm>
#include <vector>

#include "cpu/fold.h"
#include "cpu/tunings.h"
#include "operands/dispatch_operator.h"
#include "operations.h"

namespace mgpu {

namespace {

constexpr int64_t kTile = cpu::kReduceTile;

template <typename Operator>
void reduce_rows(const ReduceOperands& operands, const Operator& op, cpu::Executor& executor) {
  using State = typename Operator::State;
  const Segments& segments = operands.segments;
  const auto* x = static_cast<const typename Operator::Element*>(operands.x);
  const ResultVector<Operator> result{operands.result, operands.wide_result};
  const int64_t tiles = std::max<int64_t>(1, ceil_div(segments.length, kTile));               // of a row
  const int64_t group = std::max<int64_t>(1, kTile / std::max<int64_t>(1, segments.length));  // tiles a task
  std::vector<State> states(segments.rows * tiles);
  cpu::parallel_for(executor, ceil_div<int64_t>(states.size(), group), [&](int64_t task) {
    const int64_t last = std::min<int64_t>(states.size(), (task + 1) * group);
    for (int64_t i = task * group; i < last; ++i) {
      const int64_t row = i / tiles;
      const int64_t tile = i - row * tiles;
      const int64_t row_begin = row * segments.length;
      const int64_t live = segments.live(row);
      states[i] =
          cpu::fold(op, x, row_begin + std::min(live, tile * kTile), row_begin + std::min(live, (tile + 1) * kTile));
    }
  });
  for (int64_t row = 0; row < segments.rows; ++row) {
    cpu::Running<Operator> running(op);
    for (int64_t tile = 0; tile < tiles; ++tile) running.add(states[row * tiles + tile]);
    result.store(row, op.finish(running.state(), row * segments.length));
  }
}

// The items before each tile, of which one begins at each diagonal. Heads out of order give tiles that overlap; held
// apart, each end is in one tile.
template <typename Diagonal>
std::vector<int64_t> segment_tiles(cpu::Executor& executor, const SegmentEnds& ends, int64_t tiles, Diagonal diagonal) {
  std::vector<int64_t> items_before(tiles + 1);
  cpu::parallel_for(executor, tiles + 1, [&](int64_t tile) {
    items_before[tile] = ends.items_before(
        diagonal(tile), [](auto begin, auto end, auto before) { return partition_point(begin, end, before); });
  });
  for (int64_t tile = 1; tile <= tiles; ++tile) {
    const int64_t previous = items_before[tile - 1];
    items_before[tile] = clamp(items_before[tile], previous, previous + diagonal(tile) - diagonal(tile - 1));
  }
  return items_before;
}

template <typename Operator>
class SegmentedReduce {
  using State = typename Operator::State;

 public:
  SegmentedReduce(const SegmentedReduceOperands& operands, const Operator& op)
      : op_(op),
        ends_(operands.ends()),
        x_(static_cast<const typename Operator::Element*>(operands.x)),
        result_{operands.result, operands.wide_result},
        tiles_(ceil_div(ends_.units(), kTile)) {}

  void run(cpu::Executor& executor) {
    const std::vector<int64_t> items_before =
        segment_tiles(executor, ends_, tiles_, [&](int64_t tile) { return diagonal(tile); });
    std::vector<Tile> tiles(tiles_);
    cpu::parallel_for(executor, tiles_, [&](int64_t tile) {
      tiles[tile] = reduce_tile(tile, items_before[tile], items_before[tile + 1]);
    });
    cpu::Running<Operator> open(op_);
    for (const Tile& tile : tiles) {
      if (tile.first_end >= 0) {
        emit(tile.first_end, op_.combine(open.state(), tile.before_first_end));
        open.reset();
      }
      open.add(tile.open);
    }
  }

 private:
  // What a tile leaves for its neighbours: its first segment may have begun before it, its last may go on after it.
  struct Tile {
    int64_t first_end = -1;
    State before_first_end;
    State open;
  };

  int64_t diagonal(int64_t tile) const { return std::min(ends_.units(), tile * kTile); }

  Tile reduce_tile(int64_t tile, int64_t item, int64_t last_item) const {
    Tile result;
    const int64_t last_end = diagonal(tile + 1) - last_item;
    int64_t begin = item;
    for (int64_t j = diagonal(tile) - item; j < last_end;) {
      if (result.first_end >= 0) {
        const int64_t heads_end = std::min(last_end, ends_.row(j) * ends_.per_row() + ends_.segments.heads_count);
        if (ends_.entry(j) >= 0 && j < heads_end) {
          begin = ends_.segments.heads.wide ? reduce_heads<int64_t>(j, heads_end, begin, last_item)
                                            : reduce_heads<int32_t>(j, heads_end, begin, last_item);
          j = heads_end;
          continue;
        }
      }
      const int64_t end = clamp(ends_[j], begin, last_item);
      const State state = reduce_range(begin, end);
      if (result.first_end < 0) {
        result.first_end = j;
        result.before_first_end = state;
      } else {
        emit(j, state);
      }
      begin = end;
      ++j;
    }
    result.open = cpu::fold(op_, x_, begin, last_item);
    return result;
  }

  // The segments that the ends [j, j_end) close, all of them listed heads of one row but its first; `begin` is where
  // the first of the segments begins. What the general loop looks up for each end is looked up once: twice as fast
  // where segments have 4 items. Returns where the last segment ends.
  template <typename Head>
  int64_t reduce_heads(int64_t j, int64_t j_end, int64_t begin, int64_t last_item) const {
    const Segments& segments = ends_.segments;
    const int64_t row = ends_.row(j);
    const Head* const heads = static_cast<const Head*>(segments.heads.data) + row * segments.heads_stride;
    const int64_t row_begin = row * segments.length;
    const int64_t entries = row * segments.heads_count - 1;
    const int64_t live = segments.live(row);
    const int64_t limit = std::min({row_begin + live, last_item, segments.total() - cpu::kFew}) - row_begin;
    int64_t i = j - row * ends_.per_row();
    for (const int64_t last = i + (j_end - j); i < last;) {
      const int64_t group_last = std::min(last, i + cpu::kGroup);
      if (group_last == i + cpu::kGroup && begin >= row_begin && begin - row_begin == heads[i - 1] &&
          reduce_group(heads + i, limit, row_begin, entries + i)) {
        i = group_last;
        begin = row_begin + heads[i - 1];
      }
      for (; i < group_last; ++i) {
        const int64_t end = clamp(row_begin + clamp<int64_t>(heads[i], 0, live), begin, last_item);
        result_.store(entries + i, op_.finish(reduce_range(begin, end), row_begin));
        begin = end;
      }
    }
    return begin;
  }

  // The segments that the kGroup heads from ends[0] on close, the first of which begins at ends[-1] >= 0. Segments over
  // kFew items, which are done one by one afterwards, must not be most of them, and none may lie past `limit`: else
  // returns false, with nothing done.
  template <typename Head>
  bool reduce_group(const Head* ends, int64_t limit, int64_t row_begin, int64_t entries) const {
    if constexpr (Operator::kGivesIndex) {
      return false;  // positions are too wide for vector instructions to gain anything
    } else {
      using Unsigned = std::make_unsigned_t<Head>;
      constexpr int kSign = 8 * sizeof(Head) - 1;
      const Head* const begins = ends - 1;
      int lengths[cpu::kGroup];
      Unsigned signs = 0, longer = 0;
      for (int s = 0; s < cpu::kGroup; ++s) {
        const Unsigned length = static_cast<Unsigned>(ends[s]) - static_cast<Unsigned>(begins[s]);
        signs |= length | static_cast<Unsigned>(ends[s]);
        longer += (cpu::kFew - length) >> kSign;
        lengths[s] = static_cast<int>(std::min<Head>(static_cast<Head>(length), cpu::kFew));
      }
      const Head last = ends[cpu::kGroup - 1];
      if (signs >> kSign != 0 || last > limit || longer > 3 * cpu::kGroup / 4) return false;
      State states[cpu::kGroup];
      cpu::fold_few_of_group(op_, x_ + row_begin, begins, lengths, states);
      for (int s = 0; s < cpu::kGroup; ++s) result_.store(entries + s, op_.finish(states[s], row_begin));
      for (int s = 0; longer > 0; ++s) {
        if (ends[s] - begins[s] <= cpu::kFew) continue;
        --longer;
        const State state = cpu::fold(op_, x_, row_begin + begins[s], row_begin + ends[s]);
        result_.store(entries + s, op_.finish(state, row_begin));
      }
      return true;
    }
  }

  State reduce_range(int64_t begin, int64_t end) const {
    return end - begin <= cpu::kFew ? cpu::fold_few(op_, x_, begin, end, ends_.segments.total())
                                    : cpu::fold(op_, x_, begin, end);
  }

  void emit(int64_t j, State state) const {
    const int64_t entry = ends_.entry(j);
    if (entry >= 0) result_.store(entry, op_.finish(state, ends_.row(j) * ends_.segments.length));
  }

  const Operator& op_;
  SegmentEnds ends_;
  const typename Operator::Element* x_;
  ResultVector<Operator> result_;
  int64_t tiles_;
};

// A batch whose problems are the columns of x, in memory [length, columns], with the segments of all of them the same:
// rows are read where they lie, whole, and are combined column by column. Results are [heads, columns].
template <typename Operator>
class SegmentedReduceColumns {
  using State = typename Operator::State;

 public:
  SegmentedReduceColumns(const SegmentedReduceOperands& operands, const Operator& op)
      : op_(op),
        columns_(operands.segments.rows),
        ends_(operands.ends()),
        x_(static_cast<const typename Operator::Element*>(operands.x)),
        result_{operands.result, operands.wide_result} {
    ends_.segments.rows = 1;
    tile_ = std::max<int64_t>(kLeastUnits, kTileItems / columns_);
    tiles_ = ceil_div(ends_.units(), tile_);
  }

  void run(cpu::Executor& executor) {
    const std::vector<int64_t> items_before =
        segment_tiles(executor, ends_, tiles_, [&](int64_t tile) { return diagonal(tile); });
    std::vector<int64_t> first_ends(tiles_, -1);
    std::vector<State> before_first_end(tiles_ * columns_), open(tiles_ * columns_);
    cpu::parallel_for(executor, tiles_, [&](int64_t tile) {
      first_ends[tile] = reduce_tile(tile, items_before[tile], items_before[tile + 1],
                                     before_first_end.data() + tile * columns_, open.data() + tile * columns_);
    });
    std::vector<cpu::Running<Operator>> running(columns_, cpu::Running<Operator>(op_));
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      const int64_t end = first_ends[tile], at = tile * columns_;
      for (int64_t c = 0; c < columns_; ++c) {
        if (end >= 0) {
          emit(end, c, op_.combine(running[c].state(), before_first_end[at + c]));
          running[c].reset();
        }
        running[c].add(open[at + c]);
      }
    }
  }

 private:
  // Items and ends of a tile, of all columns together and at least: a task is to be worth its search.
  static constexpr int64_t kTileItems = 1 << 18, kLeastUnits = 1 << 6;
  static constexpr int kTogether = 16;       // columns whose states stay in registers
  static constexpr int64_t kBlockRows = 32;  // combined one after the other; blocks are combined as a tree

  int64_t diagonal(int64_t tile) const { return std::min(ends_.units(), tile * tile_); }

  // Combines a tile's rows, segment by segment. Returns the first end in it, or -1, and gives the states of its first
  // segment, which may have begun before it, and of its last, which may go on after it.
  int64_t reduce_tile(int64_t tile, int64_t begin, int64_t last_item, State* before_first_end, State* open) const {
    int64_t first_end = -1;
    const int64_t last_end = diagonal(tile + 1) - last_item;
    for (int64_t j = diagonal(tile) - begin; j < last_end; ++j) {
      const int64_t end = clamp(ends_[j], begin, last_item);
      if (first_end < 0) {
        first_end = j;
        reduce_rows(begin, end, [&](int64_t c, State state) { before_first_end[c] = state; });
      } else {
        reduce_rows(begin, end, [&](int64_t c, State state) { emit(j, c, state); });
      }
      begin = end;
    }
    reduce_rows(begin, last_item, [&](int64_t c, State state) { open[c] = state; });
    return first_end;
  }

  // Calls store(column, state) with the combination of rows [begin, end) of each column.
  template <typename Store>
  void reduce_rows(int64_t begin, int64_t end, Store store) const {
    int64_t c = 0;
    for (; c + kTogether <= columns_; c += kTogether) reduce_together<kTogether>(begin, end, c, store);
    for (; c + kTogether / 2 <= columns_; c += kTogether / 2) reduce_together<kTogether / 2>(begin, end, c, store);
    for (; c < columns_; ++c) reduce_together<1>(begin, end, c, store);
  }

  template <int kCount, typename Store>
  void reduce_together(int64_t begin, int64_t end, int64_t column, Store store) const {
    State states[kCount];
    if (end - begin <= kBlockRows) {
      reduce_block<kCount>(begin, end, column, states);
    } else {
      std::vector<cpu::Running<Operator>> running(kCount, cpu::Running<Operator>(op_));
      for (; begin < end; begin += kBlockRows) {
        reduce_block<kCount>(begin, std::min(end, begin + kBlockRows), column, states);
        for (int i = 0; i < kCount; ++i) running[i].add(states[i]);
      }
      for (int i = 0; i < kCount; ++i) states[i] = running[i].state();
    }
    for (int i = 0; i < kCount; ++i) store(column + i, states[i]);
  }

  template <int kCount>
  void reduce_block(int64_t begin, int64_t end, int64_t column, State (&states)[kCount]) const {
    const Operator op = op_;
    State sums[kCount];
    for (State& state : sums) state = op.identity();
    const auto* items = x_ + begin * columns_ + column;
    for (int64_t row = begin; row < end; ++row, items += columns_) {
      for (int i = 0; i < kCount; ++i) sums[i] = op.combine(sums[i], op.extract(items[i], row));
    }
    for (int i = 0; i < kCount; ++i) states[i] = sums[i];
  }

  void emit(int64_t j, int64_t column, State state) const {
    const int64_t entry = ends_.entry(j);
    if (entry >= 0) result_.store(entry * columns_ + column, op_.finish(state, 0));
  }

  const Operator& op_;
  int64_t columns_;
  SegmentEnds ends_;
  const typename Operator::Element* x_;
  ResultVector<Operator> result_;
  int64_t tile_;  // items and ends
  int64_t tiles_;
};

}  // namespace

void cpu::reduce(const Call& call, Executor& executor) {
  const ReduceOperands operands(call);
  operands.dispatch<false>(call, [&](const auto& op) { reduce_rows(operands, op, executor); });
}

void cpu::segmented_reduce(const Call& call, Executor& executor) {
  const SegmentedReduceOperands operands(call);
  if (call.attributes["by_columns"] == 0) {
    return operands.dispatch<false>(call, [&](const auto& op) { SegmentedReduce(operands, op).run(executor); });
  }
  const Segments& segments = operands.segments;
  const bool shared = segments.heads_stride == 0 && segments.counts.stride == 0;
  call.expect(shared, "by_columns: expected heads and a count that all problems share");
  if (segments.rows == 0) return;
  operands.dispatch<false>(call, [&](const auto& op) { SegmentedReduceColumns(operands, op).run(executor); });
}

}  // namespace mgpu
