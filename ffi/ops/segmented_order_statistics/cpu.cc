// segmented_order_statistics on the CPU. A task searches several segments; long segments are searched one after the
// other by all threads.
#include <algorithm>
#include <vector>

#include "ops/common/dispatch.h"
#include "ops/common/read.h"
#include "ops/order_statistics/rank_search.h"
#include "ops/segmented_order_statistics/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

using cpu::kOrderStatisticsPart;

template <typename Order>
class SegmentRanks {
  using Word = typename Order::Word;

 public:
  SegmentRanks(const SegmentedOrderStatisticsOperands& operands, Order order)
      : operands_(operands), order_(order), segments_(bounded_segments(operands)) {}

  void run(cpu::Executor& executor) const {
    const int64_t all = operands_.rows * operands_.segments;
    const int64_t mean = operands_.length / std::max<int64_t>(1, operands_.segments);
    const int64_t group = std::max<int64_t>(1, kOrderStatisticsPart / 4 / (mean + 16));  // segments of a task
    std::vector<std::vector<int64_t>> long_segments(ceil_div(all, group));
    cpu::parallel_for(executor, ceil_div(all, group), [&](int64_t task) {
      for (int64_t i = task * group; i < std::min(all, (task + 1) * group); ++i) {
        if (segment(i).size() > kOrderStatisticsPart) {
          long_segments[task].push_back(i);
        } else {
          find(i, cpu::in_this_thread);
        }
      }
    });
    for (const auto& of_task : long_segments) {
      for (int64_t i : of_task) {
        find(i, [&](int64_t count, const auto& body) { cpu::parallel_for(executor, count, body); });
      }
    }
  }

 private:
  int64_t row(int64_t i) const { return i / operands_.segments; }
  int64_t number(int64_t i) const { return i % operands_.segments; }
  Range<int64_t> segment(int64_t i) const { return segments_[i]; }
  const Word* keys(int64_t i) const {
    return static_cast<const Word*>(operands_.x) + row(i) * operands_.x_stride + segment(i).begin;
  }
  template <typename ForEach>
  void find(int64_t i, ForEach for_each) const {
    const int64_t row = this->row(i), number = this->number(i), size = segment(i).size();
    auto* const values = static_cast<Word*>(operands_.values);
    const auto put = [&](int64_t k, Word key) { values[operands_.place(row, k, number)] = key; };
    if (size == 0) {
      for (int64_t k = 0; k < operands_.rank_count; ++k) put(k, 0);
      return;
    }
    cpu::RankSearch(order_, keys(i), size)
        .find(operands_.rank_count, [&](int64_t k) { return operands_.rank(row, k, number, size); }, put, for_each);
  }

  const SegmentedOrderStatisticsOperands& operands_;
  Order order_;
  std::vector<Range<int64_t>> segments_;
};

}  // namespace

void cpu::segmented_order_statistics(const Call& call, Executor& executor) {
  const SegmentedOrderStatisticsOperands operands(call);
  if (operands.rows * operands.segments * operands.rank_count == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) { SegmentRanks(operands, order).run(executor); });
}

}  // namespace mgpu
