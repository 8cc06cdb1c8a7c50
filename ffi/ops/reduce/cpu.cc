// Threads reduce fixed tiles, whose states are combined in tile order, so the result does not depend on the number of
// threads.
#include <algorithm>
#include <vector>

#include "cpu/fold.h"
#include "cpu/policy.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce/operands.h"
#include "ops/reduce/segment_tiles.h"
#include "runtime/operations.h"

namespace mgpu::cpu {

namespace {

template <typename Operator, bool kSegmented>
struct ReduceProblem {
  const typename Operator::Element* x;
  Segments segments;
  ResultVector<Operator> result;
  Operator op;
};

template <typename Operator>
void reduce_rows(const ReduceProblem<Operator, false>& problem, Executor& executor) {
  using State = typename Operator::State;
  const Segments& segments = problem.segments;
  constexpr int64_t kTile = kReduceTile;
  const int64_t tiles = std::max<int64_t>(1, ceil_div(segments.length, kTile));
  const int64_t group = std::max<int64_t>(1, kTile / std::max<int64_t>(1, segments.length));  // tiles per task
  std::vector<State> states(segments.rows * tiles);
  parallel_for(executor, ceil_div<int64_t>(states.size(), group), [&](int64_t task) {
    const int64_t last = std::min<int64_t>(states.size(), (task + 1) * group);
    for (int64_t i = task * group; i < last; ++i) {
      const int64_t row = i / tiles;
      const int64_t tile = i - row * tiles;
      const int64_t row_begin = row * segments.length;
      const int64_t live = segments.live(row);
      states[i] = fold(problem.op, problem.x, row_begin + std::min(live, tile * kTile),
                       row_begin + std::min(live, (tile + 1) * kTile));
    }
  });
  for (int64_t row = 0; row < segments.rows; ++row) {
    Running<Operator> running(problem.op);
    for (int64_t tile = 0; tile < tiles; ++tile) running.add(states[row * tiles + tile]);
    problem.result.store(row, problem.op.finish(running.state(), row * segments.length));
  }
}

template <typename Operator>
class SegmentedReduce {
  using State = typename Operator::State;

 public:
  explicit SegmentedReduce(const ReduceProblem<Operator, true>& problem)
      : op_(problem.op), ends_{problem.segments}, x_(problem.x), result_(problem.result) {}

  void run(Executor& executor) {
    const SegmentTiles partition(ends_, kReduceTile, executor);
    std::vector<Tile> tiles(partition.count);
    parallel_for(executor, partition.count, [&](int64_t tile) { tiles[tile] = reduce_tile(partition, tile); });
    Running<Operator> open(op_);
    for (const Tile& tile : tiles) {
      if (tile.first_end >= 0) {
        emit(tile.first_end, op_.combine(open.state(), tile.before_first_end));
        open.reset();
      }
      open.add(tile.open);
    }
  }

 private:
  // A tile's first segment may begin in an earlier tile, and its last one may continue in the next.
  struct Tile {
    int64_t first_end = -1;
    State before_first_end;
    State open;
  };

  Tile reduce_tile(const SegmentTiles& partition, int64_t tile) const {
    Tile result;
    int64_t begin = partition.items_before[tile];
    const int64_t last_item = partition.items_before[tile + 1], last_end = partition.ends_before(tile + 1);
    for (int64_t j = partition.ends_before(tile); j < last_end;) {
      if (result.first_end >= 0) {
        const int64_t heads_end = std::min(last_end, ends_.row(j) * ends_.per_row() + ends_.segments.heads_count);
        if (ends_.entry(j) >= 0 && j < heads_end) {
          begin = reduce_heads(j, heads_end, begin, last_item);
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
    result.open = fold(op_, x_, begin, last_item);
    return result;
  }

  // Reduces the segments that the ends [j, j_end) close. All these ends are heads of one row, and none is the row's
  // first head. The first segment begins at `begin`. Returns where the last one ends.
  int64_t reduce_heads(int64_t j, int64_t j_end, int64_t begin, int64_t last_item) const {
    const Segments& segments = ends_.segments;
    const int64_t row = ends_.row(j);
    const IndexVector heads = segments.heads.from(row * segments.heads_stride);
    const int64_t row_begin = row * segments.length;
    const int64_t entries = row * segments.heads_count - 1;
    const int64_t live = segments.live(row);
    const int64_t limit = std::min({row_begin + live, last_item, segments.total() - kFew}) - row_begin;
    int64_t i = j - row * ends_.per_row();
    for (const int64_t last = i + (j_end - j); i < last;) {
      const int64_t group_last = std::min(last, i + kGroup);
      if (group_last == i + kGroup && begin >= row_begin && begin - row_begin == heads[i - 1] &&
          reduce_heads_of_group(heads.from(i - 1), begin, limit, row_begin, entries + i)) {
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

  // Like reduce_group, for heads of either width. Those of 64 bits become distances from the group's begin.
  bool reduce_heads_of_group(IndexVector heads, int64_t begin, int64_t limit, int64_t row_begin,
                             int64_t entries) const {
    if constexpr (Operator::kGivesIndex || !std::is_arithmetic_v<State>) {
      return false;
    } else {
      if (!heads.wide) {
        return reduce_group(static_cast<const int32_t*>(heads.data) + 1, limit, row_begin, row_begin, entries);
      }
      int32_t near[kGroup + 1];
      const int64_t first = begin - row_begin;
      uint64_t distances = 0;
      for (int s = 0; s <= kGroup; ++s) {
        const auto distance = static_cast<uint64_t>(static_cast<const int64_t*>(heads.data)[s]) - first;
        distances |= distance;
        near[s] = static_cast<int32_t>(distance);
      }
      if (distances > INT32_MAX) return false;
      return reduce_group(near + 1, limit - first, begin, row_begin, entries);
    }
  }

  // Reduces the kGroup segments that end at ends[0] to ends[kGroup - 1], counted from `from`; the first begins at
  // ends[-1] >= 0. Segments of more than kFew items are reduced one by one afterwards. Returns false and does nothing
  // if more than three quarters are so long, if an end lies past `limit`, or if heads are negative or decrease.
  bool reduce_group(const int32_t* ends, int64_t limit, int64_t from, int64_t row_begin, int64_t entries) const {
    constexpr int kSign = 31;
    const int32_t* const begins = ends - 1;
    int lengths[kGroup];
    uint32_t signs = 0, longer = 0;
    for (int s = 0; s < kGroup; ++s) {
      const uint32_t length = static_cast<uint32_t>(ends[s]) - static_cast<uint32_t>(begins[s]);
      signs |= length | static_cast<uint32_t>(ends[s]);
      longer += (kFew - length) >> kSign;
      lengths[s] = std::min(static_cast<int32_t>(length), kFew);
    }
    if (signs >> kSign != 0 || ends[kGroup - 1] > limit || longer > 3 * kGroup / 4) return false;
    State states[kGroup];
    fold_few_of_group(op_, x_ + from, begins, lengths, states);
    for (int s = 0; s < kGroup; ++s) result_.store(entries + s, op_.finish(states[s], row_begin));
    for (int s = 0; longer > 0; ++s) {
      if (ends[s] - begins[s] <= kFew) continue;
      --longer;
      const State state = fold(op_, x_, from + begins[s], from + ends[s]);
      result_.store(entries + s, op_.finish(state, row_begin));
    }
    return true;
  }

  State reduce_range(int64_t begin, int64_t end) const {
    if (end - begin <= kFew) return fold_few(op_, x_, begin, end, ends_.segments.total());
    return fold(op_, x_, begin, end);
  }

  void emit(int64_t j, State state) const {
    const int64_t entry = ends_.entry(j);
    if (entry >= 0) result_.store(entry, op_.finish(state, ends_.row(j) * ends_.segments.length));
  }

  const Operator& op_;
  SegmentEnds ends_;
  const typename Operator::Element* x_;
  ResultVector<Operator> result_;
};

template <bool kSegmented, typename Operands>
void run(const Operands& operands, const Call& call, Executor& executor) {
  operands.template dispatch_reduction<false>(call, [&]<typename Operator>(const Operator& op) {
    const ReduceProblem<Operator, kSegmented> problem{static_cast<const typename Operator::Element*>(operands.x),
                                                      operands.segments, results_of<Operator>(operands), op};
    if constexpr (kSegmented) {
      SegmentedReduce<Operator>(problem).run(executor);
    } else {
      reduce_rows(problem, executor);
    }
  });
}

}  // namespace

void reduce(const Call& call, Executor& executor) { run<false>(ReduceOperands(call), call, executor); }

void segmented_reduce(const Call& call, Executor& executor) {
  run<true>(SegmentedReduceOperands(call), call, executor);
}

}  // namespace mgpu::cpu
