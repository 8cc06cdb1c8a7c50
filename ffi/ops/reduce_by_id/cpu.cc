// Each part of the rows has states of all ids, and the parts' states are combined in order.
#include <algorithm>
#include <memory>

#include "cpu/policy.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce_by_id/operands.h"
#include "runtime/operations.h"

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
        result_(results_of<Operator>(operands)) {}

  // The parts follow only from the shapes, so that float results do not depend on the number of threads.
  void run(cpu::Executor& executor) const {
    const int64_t problems = operands_.segments.rows, slots = operands_.slots();
    const int64_t min_rows = std::max((width_ == 1 ? 2 : 4) * operands_.size, cpu::kIdMinPartRows);
    const int64_t parts = std::clamp<int64_t>(length_ / min_rows, 1, cpu::kIdMaxParts);
    // The states of the first part use the memory of the results, if these are as wide.
    constexpr bool kSameWidth = !Operator::kGivesIndex && sizeof(State) == sizeof(typename Operator::Result);
    const bool in_place = kSameWidth && (!kIsNarrow<Operator> || result_.wide);
    const int64_t stored = in_place ? parts - 1 : parts;
    const auto scratch = std::make_unique_for_overwrite<State[]>(problems * stored * slots);
    const auto states_of = [&](int64_t problem, int64_t part) {
      if (in_place && part == 0) return static_cast<State*>(operands_.result) + problem * slots;
      return &scratch[(problem * stored + part - in_place) * slots];
    };
    cpu::parallel_for(executor, problems * parts, [&](int64_t task) {
      const int64_t problem = task / parts, part = task % parts;
      add_rows(problem, part * length_ / parts, (part + 1) * length_ / parts, states_of(problem, part));
    });
    constexpr int64_t kSlots = 1 << 12;
    const int64_t chunks = ceil_div(slots, kSlots);
    cpu::parallel_for(executor, problems * chunks, [&](int64_t task) {
      const int64_t problem = task / chunks, begin = task % chunks * kSlots, end = std::min(slots, begin + kSlots);
      State* const first = states_of(problem, 0);
      for (int64_t part = 1; part < parts; ++part) {
        const State* const part_states = states_of(problem, part);
        for (int64_t i = begin; i < end; ++i) first[i] = op_.combine(first[i], part_states[i]);
      }
      for (int64_t i = begin; i < end; ++i) {
        const State state = first[i];
        result_.store(problem * slots + i, op_.finish(state, 0));
      }
    });
  }

 private:
  static constexpr int kColumns = 8;  // columns that are combined at a time

  void add_rows(int64_t problem, int64_t begin, int64_t end, State* states) const {
    const Operator op = op_;
    const int64_t width = width_, size = operands_.size;
    const auto* const x =
        static_cast<const typename Operator::Element*>(operands_.x) + problem * operands_.x_stride * width;
    std::fill_n(states, operands_.slots(), op.identity());
    end = std::min(end, operands_.segments.live(problem));
    with_width<void>(operands_.ids.from(problem * operands_.ids_stride), [&](auto ids) {
      const auto for_each_row = [&](auto add) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t id = ids[i];
          if (static_cast<uint64_t>(id) < static_cast<uint64_t>(size)) add(states + id * width, x + i * width, i);
        }
      };
      const auto of_width = [&]<int kWidth>(std::integral_constant<int, kWidth>) {
        for_each_row([=](State* __restrict to, const auto* __restrict row, int64_t i) {
          for (int c = 0; c < kWidth; ++c) to[c] = op.combine(to[c], op.extract(row[c], i));
        });
      };
      switch (width) {
        case 1: return of_width(std::integral_constant<int, 1>{});
        case 2: return of_width(std::integral_constant<int, 2>{});
        case 4: return of_width(std::integral_constant<int, 4>{});
        default: break;
      }
      for_each_row([=](State* __restrict to, const auto* __restrict row, int64_t i) {
        int64_t c = 0;
        for (; c + kColumns <= width; c += kColumns) {
          for (int k = 0; k < kColumns; ++k) to[c + k] = op.combine(to[c + k], op.extract(row[c + k], i));
        }
        for (; c < width; ++c) to[c] = op.combine(to[c], op.extract(row[c], i));
      });
    });
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
