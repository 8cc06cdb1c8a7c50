// Fixed tiles are spread over threads. Each tile is reduced, the tiles' states are combined in order, then each tile is
// scanned from the state before it. The result does not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "algorithm/segments.h"
#include "cpu/fold.h"
#include "cpu/policy.h"
#include "ops/common/dispatch_operator.h"
#include "ops/common/operators.h"
#include "ops/scan/operands.h"
#include "runtime/operations.h"

namespace mgpu::cpu {

namespace {

template <typename Operator>
struct ScanProblem {
  const typename Operator::Element* x;
  const typename Operator::Element* initial;  // null if there are no initial items
  Segments segments;
  bool exclusive;
  bool reverse;
  ResultVector<Operator> result;
  ResultVector<Operator> totals;  // null unless requested
  Operator op;
};

// Flags the positions at which segments begin, from a range's begin to its end, both included, and the end of all
// items. Dead items need no flags: scan_piece fills their results.
std::vector<uint8_t> flag_cuts(Segments segments, Range<int64_t> range) {
  const int64_t total = segments.total();
  segments.counts = {};
  std::vector<uint8_t> cuts(range.size() + 1);
  const auto find = [](auto begin, auto end, auto before) { return partition_point(begin, end, before); };
  const Range<int64_t> positions{range.begin, std::min(range.end + 1, total)};
  segments.mark_heads(positions,
                      {segments.listed_from(positions.begin, find), segments.listed_from(positions.end, find)}, 0, 1,
                      [&](int64_t position) { cuts[position - range.begin] = 1; });
  if (range.end == total) cuts[range.size()] = 1;
  return cuts;
}

template <typename Operator>
class Scan {
  using State = typename Operator::State;
  using Since = SinceRestart<State>;
  using Running = cpu::Running<Operator>;
  static constexpr int64_t kTile = kScanTile;
  static constexpr int64_t kBlock = 32;

 public:
  explicit Scan(const ScanProblem<Operator>& problem)
      : problem_(problem),
        segments_(problem.segments),
        op_(problem.op),
        x_(problem.x),
        result_(problem.result),
        totals_(problem.totals),
        total_(segments_.total()),
        tiles_(ceil_div(total_, kTile)) {}

  void run(Executor& executor) const {
    if (total_ == 0) {
      for (int64_t row = 0; totals_.given() && row < segments_.rows; ++row) {
        totals_.store(row, op_.finish(first_state(row), 0));
      }
      return;
    }
    std::vector<Since> tiles(tiles_);
    parallel_for(executor, tiles_, [&](int64_t i) {
      Since since{op_.identity(), 0};
      for_each_piece(i, [&](Range<int64_t> piece, bool restarts) {
        since = combine_since(op_, since, Since{fold_items(live_part(piece)), restarts});
      });
      tiles[i] = since;
    });
    Running running(op_);
    for (int64_t i = 0; i < tiles_; ++i) {
      const State before = op_.combine(first_state(segments_.row(first_of_tile(i))), running.state());
      if (tiles[i].restarted) running.reset();
      running.add(tiles[i].state);
      tiles[i].state = before;
    }
    parallel_for(executor, tiles_, [&](int64_t i) {
      State before_tile = tiles[i].state;
      Running in_tile(op_);
      for_each_piece(i, [&](Range<int64_t> piece, bool restarts) {
        if (restarts) {
          before_tile = first_state(segments_.row(piece.begin));
          in_tile.reset();
        }
        scan_piece(piece, before_tile, in_tile);
      });
    });
  }

 private:
  State first_state(int64_t row) const {
    return problem_.initial ? op_.extract(problem_.initial[row], 0) : op_.identity();
  }
  int64_t first_of_tile(int64_t i) const {
    return problem_.reverse ? std::min(total_, (tiles_ - i) * kTile) - 1 : i * kTile;
  }

  // Calls visit(piece, restarts) for the pieces of tile number i, in the order of the scan. A
  // piece lies within one segment. `restarts` says whether the scan restarts before the piece.
  template <typename Visit>
  void for_each_piece(int64_t i, Visit visit) const {
    const int64_t tile = problem_.reverse ? tiles_ - 1 - i : i;
    const Range<int64_t> range{tile * kTile, std::min(total_, (tile + 1) * kTile)};
    if (segments_.heads_count == 0 && segments_.rows == 1) return visit(range, i == 0);
    const std::vector<uint8_t> cuts = flag_cuts(segments_, range);
    if (problem_.reverse) {
      for (int64_t end = range.end, begin; end > range.begin; end = begin) {
        begin = end - 1;
        while (begin > range.begin && !cuts[begin - range.begin]) --begin;
        visit({begin, end}, cuts[end - range.begin] != 0);
      }
    } else {
      for (int64_t begin = range.begin, end; begin < range.end; begin = end) {
        const uint8_t* const rest = cuts.data() + (begin + 1 - range.begin);
        const void* const cut = std::memchr(rest, 1, range.end - begin - 1);
        end = cut ? begin + 1 + (static_cast<const uint8_t*>(cut) - rest) : range.end;
        visit({begin, end}, cuts[begin - range.begin] != 0);
      }
    }
  }

  State fold_items(Range<int64_t> items) const {
    if (items.size() <= kFew) return fold_few(op_, x_, items.begin, items.end, total_);
    return fold(op_, x_, items.begin, items.end);
  }

  Range<int64_t> live_part(Range<int64_t> piece) const {
    if (!segments_.counts.given()) return piece;
    const int64_t row = segments_.row(piece.begin);
    const int64_t live_end = row * segments_.length + segments_.live(row);
    return {std::min(piece.begin, live_end), std::min(piece.end, live_end)};
  }

  // The prefix within the tile is kept apart from the prefix before the tile, and each block is scanned from the
  // identity. So floats have the rounding errors of short sums.
  void scan_piece(Range<int64_t> piece, State before_tile, Running& in_tile) const {
    const int64_t row = segments_.row(piece.begin);
    const int64_t row_begin = row * segments_.length;
    const Range<int64_t> live = live_part(piece);
    if (problem_.reverse) {
      for (int64_t i = 0; i < live.size(); i += kBlock) {
        scan_block(std::min(kBlock, live.size() - i), row_begin, before_tile, in_tile,
                   [=](int64_t k) { return live.end - 1 - i - k; });
      }
    } else {
      for (int64_t i = live.begin; i < live.end; i += kBlock) {
        scan_block(std::min(kBlock, live.end - i), row_begin, before_tile, in_tile, [=](int64_t k) { return i + k; });
      }
    }
    for (int64_t i = std::max(live.end, piece.begin); i < piece.end; ++i) result_.store(i, op_.dead());
    if (totals_.given() && ends_row(piece, row_begin, segments_.live(row))) {
      totals_.store(row, op_.finish(op_.combine(before_tile, in_tile.state()), row_begin));
    }
  }

  template <typename Position>
  void scan_block(int64_t count, int64_t row_begin, State before_tile, Running& in_tile, Position position) const {
    const State before = op_.combine(before_tile, in_tile.state());
    if (count <= kFew) {  // too few items for vector instructions to pay
      State sum = op_.identity();
      for (int64_t k = 0; k < count; ++k) {
        const State next = op_.combine(sum, op_.extract(x_[position(k)], position(k)));
        result_.store(position(k), op_.finish(op_.combine(before, problem_.exclusive ? sum : next), row_begin));
        sum = next;
      }
      in_tile.add(sum);
      return;
    }
    State scanned[kBlock + 1];
    scanned[0] = op_.identity();
    for (int64_t k = 0; k < count; ++k) {
      scanned[k + 1] = op_.combine(scanned[k], op_.extract(x_[position(k)], position(k)));
    }
    const State* const kept = scanned + (problem_.exclusive ? 0 : 1);
    // Copies, because the compiler must assume that a store of 8-bit items changes this object's members.
    const Operator op = op_;
    const ResultVector<Operator> result = result_;
    for (int64_t k = 0; k < count; ++k) result.store(position(k), op.finish(op.combine(before, kept[k]), row_begin));
    in_tile.add(scanned[count]);
  }

  bool ends_row(Range<int64_t> piece, int64_t row_begin, int64_t live) const {
    if (problem_.reverse || live == 0) return piece.begin == row_begin;
    return piece.begin < row_begin + live && row_begin + live <= piece.end;
  }

  const ScanProblem<Operator>& problem_;
  const Segments& segments_;
  const Operator& op_;
  const typename Operator::Element* x_;
  ResultVector<Operator> result_;
  ResultVector<Operator> totals_;
  int64_t total_;
  int64_t tiles_;
};

}  // namespace

void scan(const Call& call, Executor& executor) {
  const ScanOperands operands(call);
  operands.dispatch<false>(call, [&]<typename Operator>(const Operator& op) {
    const ScanProblem<Operator> problem{static_cast<const typename Operator::Element*>(operands.x),
                                        static_cast<const typename Operator::Element*>(operands.initial),
                                        operands.segments,
                                        operands.exclusive,
                                        operands.reverse,
                                        {operands.result, operands.wide_result},
                                        {operands.totals, operands.wide_result},
                                        op};
    Scan<Operator>(problem).run(executor);
  });
}

}  // namespace mgpu::cpu
