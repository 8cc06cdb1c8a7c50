// Sliding windows that overlap share work: rows before a common boundary are combined backwards from it, which gives a
// state for each begin of a window, and rows after it forwards. Other intervals combine totals of aligned groups.
#include <algorithm>
#include <vector>

#include "algorithm/interval_groups.h"
#include "ops/common/dispatch_operator.h"
#include "ops/interval_reduce/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

constexpr int64_t kMostShared = 1 << 12;  // the most elements of a window that shares its work

// Whether begins and ends of the nonempty intervals do not descend, and none has more than kMostShared elements.
bool moves_on(const IntervalReduceOperands& operands, int64_t problem, int64_t first, int64_t last) {
  Range<int64_t> before{0, 0};
  for (int64_t i = first; i < last; ++i) {
    const Range<int64_t> interval = operands.interval(problem, i);
    if (interval.size() == 0) continue;
    if (interval.begin < before.begin || interval.end < before.end) return false;
    if (interval.size() * operands.width > kMostShared) return false;
    before = interval;
  }
  return true;
}

template <typename Operator>
class ReduceIntervals {
  using State = typename Operator::State;
  using Element = typename Operator::Element;

 public:
  ReduceIntervals(const IntervalReduceOperands& operands, const Operator& op)
      : operands_(operands),
        op_(op),
        width_(operands.width),
        tables_(operands.x_stride == 0 ? 1 : operands.problems),
        result_(results_of<Operator>(operands)) {}

  void run(cpu::Executor& executor) {
    make_totals(executor);
    const int64_t chunks = ceil_div(operands_.count, kTask);
    cpu::parallel_for(executor, operands_.problems * chunks, [&](int64_t task) {
      const int64_t problem = task / chunks, first = (task - problem * chunks) * kTask;
      const int64_t last = std::min(operands_.count, first + kTask);
      moves_on(operands_, problem, first, last) ? move_on(problem, first, last) : reduce_each(problem, first, last);
    });
  }

 private:
  static constexpr int64_t kTask = 1 << 12;  // intervals

  const Element* rows_of(int64_t problem) const {
    return static_cast<const Element*>(operands_.x) + problem * operands_.x_stride * width_;
  }

  void add_row(const Operator& op, const Element* x, int64_t row, State* __restrict states) const {
    const Element* const __restrict items = x + row * width_;
    for (int64_t c = 0; c < width_; ++c) states[c] = op.combine(states[c], op.extract(items[c], row));
  }
  void add_states(const Operator& op, const State* __restrict from, State* __restrict states) const {
    for (int64_t c = 0; c < width_; ++c) states[c] = op.combine(states[c], from[c]);
  }

  void move_on(int64_t problem, int64_t first, int64_t last) const {
    const Operator op = op_;
    const Element* const x = rows_of(problem);
    std::vector<State> fronts(std::max(kMostShared, width_)), back(width_);
    int64_t begin = 0, shared = 0, end = 0;  // a front combines [its row, shared), back combines [shared, end)
    for (int64_t i = first; i < last; ++i) {
      const Range<int64_t> interval = operands_.interval(problem, i);
      if (interval.size() == 0) {
        emit(problem, i, [&](int64_t) { return op.identity(); });
        continue;
      }
      if (interval.begin >= shared) {
        begin = interval.begin;
        shared = end = interval.end;
        std::fill(back.begin(), back.end(), op.identity());
        const State* after = back.data();
        for (int64_t row = shared; row-- > begin;) {
          State* const to = &fronts[(row - begin) * width_];
          const Element* const items = x + row * width_;
          for (int64_t c = 0; c < width_; ++c) to[c] = op.combine(op.extract(items[c], row), after[c]);
          after = to;
        }
      }
      for (; end < interval.end; ++end) add_row(op, x, end, back.data());
      const State* const front = &fronts[(interval.begin - begin) * width_];
      emit(problem, i, [&](int64_t c) { return op.combine(front[c], back[c]); });
    }
  }

  void reduce_each(int64_t problem, int64_t first, int64_t last) const {
    const Operator op = op_;
    std::vector<State> states(width_);
    for (int64_t i = first; i < last; ++i) {
      std::fill(states.begin(), states.end(), op.identity());
      cut_into_groups(operands_.interval(problem, i), [&](int level, Range<int64_t> run, GroupRun) {
        add(problem, level, run.begin, run.end, states.data());
      });
      emit(problem, i, [&](int64_t c) { return states[c]; });
    }
  }

  [[gnu::noinline]] void add(int64_t problem, size_t level, int64_t begin, int64_t end, State* states) const {
    const Operator op = op_;
    if (level == 0) {
      for (const Element* const x = rows_of(problem); begin < end; ++begin) add_row(op, x, begin, states);
    } else {
      const std::vector<State>& totals = totals_[level - 1];
      const State* const of = totals.data() + (tables_ == 1 ? 0 : problem * (totals.size() / tables_));
      for (; begin < end; ++begin) add_states(op, of + begin * width_, states);
    }
  }

  // Makes the totals of groups, level by level, as long as a level has a whole group.
  void make_totals(cpu::Executor& executor) {
    for (int64_t count = operands_.segments.length / kIntervalGroup; count > 0; count /= kIntervalGroup) {
      const size_t level = totals_.size();
      std::vector<State>& totals = totals_.emplace_back(tables_ * count * width_, op_.identity());
      constexpr int64_t kGroups = 1 << 10;
      const int64_t chunks = ceil_div(count, kGroups);
      cpu::parallel_for(executor, tables_ * chunks, [&](int64_t task) {
        const int64_t table = task / chunks, first = (task - table * chunks) * kGroups;
        for (int64_t i = first; i < std::min(count, first + kGroups); ++i) {
          add(table, level, i * kIntervalGroup, (i + 1) * kIntervalGroup, totals.data() + (table * count + i) * width_);
        }
      });
    }
  }

  template <typename StateOf>
  void emit(int64_t problem, int64_t i, StateOf state_of) const {
    const int64_t at = (problem * operands_.count + i) * width_;
    for (int64_t c = 0; c < width_; ++c) result_.store(at + c, op_.finish(state_of(c), 0));
  }

  const IntervalReduceOperands& operands_;
  const Operator op_;
  const int64_t width_;
  const int64_t tables_;
  const ResultVector<Operator> result_;
  std::vector<std::vector<State>> totals_;  // of each level above the rows: [tables, groups, width]
};

}  // namespace

void cpu::interval_reduce(const Call& call, Executor& executor) {
  const IntervalReduceOperands operands(call);
  if (operands.problems * operands.count * operands.width == 0) return;
  operands.dispatch_reduction<false>(call, [&](const auto& op) { ReduceIntervals(operands, op).run(executor); });
}

}  // namespace mgpu
