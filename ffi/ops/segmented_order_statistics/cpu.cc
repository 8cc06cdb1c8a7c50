// A task searches one short segment or several; long segments are searched one after the other by all threads.
#include "cpu/for_each_segment.h"
#include "ops/common/dispatch.h"
#include "ops/order_statistics/rank_search.h"
#include "ops/segmented_order_statistics/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

template <typename Order, typename ForEach>
void find(const SegmentedOrderStatisticsOperands& operands, Order order, const cpu::RowRange& segment,
          ForEach for_each) {
  using Word = typename Order::Word;
  const auto [row, number, range] = segment;
  auto* const values = static_cast<Word*>(operands.values);
  const auto put = [&](int64_t k, Word key) { values[operands.place(row, k, number)] = key; };
  if (range.size() == 0) {
    for (int64_t k = 0; k < operands.rank_count; ++k) put(k, 0);
    return;
  }
  const Word* const keys = static_cast<const Word*>(operands.x) + row * operands.x_stride + range.begin;
  const auto rank = [&](int64_t k) { return operands.rank(row, k, number, range.size()); };
  cpu::RankSearch(order, keys, range.size()).find(operands.rank_count, rank, put, for_each);
}

}  // namespace

void cpu::segmented_order_statistics(const Call& call, Executor& executor) {
  const SegmentedOrderStatisticsOperands operands(call);
  if (operands.rows * operands.segments * operands.rank_count == 0) return;
  const auto by_all = [&](int64_t count, const auto& body) { parallel_for(executor, count, body); };
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    for_each_segment(
        executor, operands, kOrderStatisticsPart,
        [&](const RowRange& segment) { find(operands, order, segment, in_this_thread); },
        [&](const RowRange& segment) { find(operands, order, segment, by_all); });
  });
}

}  // namespace mgpu
