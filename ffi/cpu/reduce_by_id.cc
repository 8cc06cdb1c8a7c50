// reduce_by_id on the CPU. Where ids are few beside the rows, each of a fixed number of parts of the rows has states of
// all ids, which are combined in the parts' order. Else each task takes a range of the ids, and the rows that have
// them, in order. So the result does not depend on the number of threads.
#include "operands/reduce_by_id.h"

#include <algorithm>
#include <vector>

#include "cpu/tunings.h"
#include "operands/dispatch_operator.h"
#include "operations.h"

namespace mgpu {

namespace {

template <typename Operator>
class ReduceById {
  using State = typename Operator::State;

 public:
  ReduceById(const ReduceByIdOperands& operands, const Operator& op)
      : operands_(operands),
        op_(op),
        length_(operands.segments.length),
        width_(operands.width),
        result_{operands.result, operands.wide_result} {}

  void run(cpu::Executor& executor) const {
    for (int64_t problem = 0; problem < operands_.segments.rows; ++problem) {
      const int64_t parts = std::clamp<int64_t>(length_ / (4 * operands_.size), 1, cpu::kIdMostParts);
      parts >= 8 ? run_parts(problem, parts, executor) : run_ranges(problem, executor);
    }
  }

 private:
  void run_parts(int64_t problem, int64_t parts, cpu::Executor& executor) const {
    const int64_t slots = operands_.slots();
    std::vector<State> states(parts * slots, op_.identity());
    cpu::parallel_for(executor, parts, [&](int64_t part) {
      add_rows(problem, part * length_ / parts, (part + 1) * length_ / parts, {0, operands_.size},
               &states[part * slots]);
    });
    constexpr int64_t kSlots = 1 << 12;
    cpu::parallel_for(executor, ceil_div(slots, kSlots), [&](int64_t task) {
      const int64_t begin = task * kSlots, end = std::min(slots, begin + kSlots);
      for (int64_t part = 1; part < parts; ++part) {
        for (int64_t i = begin; i < end; ++i) states[i] = op_.combine(states[i], states[part * slots + i]);
      }
      for (int64_t i = begin; i < end; ++i) result_.store(problem * slots + i, op_.finish(states[i], 0));
    });
  }

  void run_ranges(int64_t problem, cpu::Executor& executor) const {
    const int64_t ranges = std::clamp(executor.concurrency(), 1, cpu::kIdMostRanges);
    cpu::parallel_for(executor, ranges, [&](int64_t range) {
      const Range<int64_t> ids{range * operands_.size / ranges, (range + 1) * operands_.size / ranges};
      std::vector<State> states(ids.size() * width_, op_.identity());
      add_rows(problem, 0, length_, ids, states.data());
      const int64_t at = problem * operands_.slots() + ids.begin * width_;
      for (size_t i = 0; i < states.size(); ++i) result_.store(at + i, op_.finish(states[i], 0));
    });
  }

  // Adds the live rows [begin, end) whose ids are in the range to the states of the range.
  void add_rows(int64_t problem, int64_t begin, int64_t end, Range<int64_t> range, State* states) const {
    const Operator op = op_;
    const auto* const x =
        static_cast<const typename Operator::Element*>(operands_.x) + problem * operands_.x_stride * width_;
    const IndexVector ids = operands_.ids.from(problem * operands_.ids_stride);
    end = std::min(end, operands_.segments.live(problem));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[i];
      if (id < range.begin || id >= range.end) continue;
      State* const to = states + (id - range.begin) * width_;
      for (int64_t c = 0; c < width_; ++c) to[c] = op.combine(to[c], op.extract(x[i * width_ + c], i));
    }
  }

  const ReduceByIdOperands& operands_;
  const Operator op_;
  int64_t length_;
  int64_t width_;
  ResultVector<Operator> result_;
};

}  // namespace

void cpu::reduce_by_id(const Call& call, Executor& executor) {
  const ReduceByIdOperands operands(call);
  if (operands.segments.rows * operands.slots() == 0) return;
  operands.dispatch_reduction<false>(call, [&](const auto& op) { ReduceById(operands, op).run(executor); });
}

}  // namespace mgpu
