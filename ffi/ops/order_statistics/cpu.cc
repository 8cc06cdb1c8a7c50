// If there are fewer rows than threads, threads may share a row. Otherwise, a thread takes whole rows.
#include <algorithm>

#include "ops/common/dispatch.h"
#include "ops/order_statistics/rank_search.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

template <typename Order, typename ForEach>
void find_in_row(const OrderStatisticsOperands& operands, Order order, int64_t row, ForEach for_each) {
  using Word = typename Order::Word;
  auto* const values = static_cast<Word*>(operands.values) + row * operands.rank_count;
  const int64_t live = operands.live(row);
  if (live == 0) {
    std::fill_n(values, operands.rank_count, Word{0});
    return;
  }
  const cpu::RankSearch search(order, static_cast<const Word*>(operands.x) + row * operands.x_stride, live);
  search.find(
      operands.rank_count, [&](int64_t i) { return operands.rank(row, i); },
      [&](int64_t i, Word key) { values[i] = key; }, for_each);
}

}  // namespace

void cpu::order_statistics(const Call& call, Executor& executor) {
  const OrderStatisticsOperands operands(call);
  if (operands.rank_count == 0) return;
  const auto together = [&](int64_t count, const auto& body) { parallel_for(executor, count, body); };
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    if (operands.rows < executor.concurrency()) {
      for (int64_t row = 0; row < operands.rows; ++row) find_in_row(operands, order, row, together);
    } else {
      parallel_for(executor, operands.rows, [&](int64_t row) { find_in_row(operands, order, row, in_this_thread); });
    }
  });
}

}  // namespace mgpu
