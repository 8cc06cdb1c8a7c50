// A task takes whole rows; if rows are long and few, all threads search one row after the other.
#include "ops/common/dispatch.h"
#include "ops/top_k/best.h"
#include "ops/top_k/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

using cpu::kTopKPart;

template <typename Order>
class TopK {
  using Word = typename Order::Word;

 public:
  TopK(const TopKOperands& operands, Order order) : operands_(operands), order_(order) {}

  void run(cpu::Executor& executor) const {
    const int64_t rows = operands_.rows, length = operands_.length;
    if (length > std::max(kTopKPart, 8 * operands_.k) && rows < 4 * executor.concurrency()) {
      for (int64_t row = 0; row < rows; ++row) {
        store(row, cpu::best_of_parts(executor, order_, operands_.k, keys(row), operands_.live(row)));
      }
      return;
    }
    const int64_t group = std::max<int64_t>(1, kTopKPart / 4 / std::max<int64_t>(1, length));
    cpu::parallel_for(executor, ceil_div(rows, group), [&](int64_t task) {
      for (int64_t row = task * group; row < std::min(rows, (task + 1) * group); ++row) {
        store(row, cpu::Best<Order>(order_, operands_.k, keys(row), 0, operands_.live(row)));
      }
    });
  }

 private:
  const Word* keys(int64_t row) const { return static_cast<const Word*>(operands_.x) + row * operands_.length; }
  void store(int64_t row, cpu::Best<Order> best) const {
    best.store(operands_.values, operands_.indices, row * operands_.k, 0);
  }

  const TopKOperands& operands_;
  Order order_;
};

}  // namespace

void cpu::top_k(const Call& call, Executor& executor) {
  const TopKOperands operands(call);
  dispatch_order(call, operands.key_type, operands.largest,
                 [&](auto order) { TopK<decltype(order)>(operands, order).run(executor); });
}

}  // namespace mgpu
