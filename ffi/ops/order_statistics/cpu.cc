// order_statistics on the CPU. Counting the highest digits of all keys shows which digit each sought item has. The few
// items with one of these digits are collected, and the sought ones are selected from them.
#include <algorithm>
#include <vector>

#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "ops/order_statistics/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

using cpu::kOrderStatisticsPart;

template <typename Order>
class RowStatistics {
  using Word = typename Order::Word;
  static constexpr int kBits = std::min<int>(kRankDigitBits, 8 * sizeof(Word));
  static constexpr int kDigits = 1 << kBits;
  static constexpr int kShift = 8 * sizeof(Word) - kBits;

 public:
  RowStatistics(const OrderStatisticsOperands& operands, Order order, int64_t row)
      : operands_(operands),
        order_(order),
        row_(row),
        live_(operands.live(row)),
        keys_(static_cast<const Word*>(operands.x) + row * operands.x_stride) {}

  // for_each(count, body) runs body(i) for each i below count.
  template <typename ForEach>
  void run(ForEach for_each) const {
    auto* const values = static_cast<Word*>(operands_.values) + row_ * operands_.rank_count;
    if (live_ == 0) {
      std::fill_n(values, operands_.rank_count, Word{0});
      return;
    }
    const int64_t parts = ceil_div(live_, kOrderStatisticsPart);
    std::vector<std::vector<int64_t>> counts(parts, std::vector<int64_t>(kDigits));
    for_each(parts, [&](int64_t part) { for_part(part, [&](Word rank) { ++counts[part][rank >> kShift]; }); });
    std::vector<int64_t> before(kDigits + 1);
    for (int digit = 0; digit < kDigits; ++digit) {
      before[digit + 1] = before[digit];
      for (int64_t part = 0; part < parts; ++part) before[digit + 1] += counts[part][digit];
    }

    const auto digit_of = [&](int64_t i) {
      return std::upper_bound(before.begin(), before.end(), operands_.rank(row_, i)) - before.begin() - 1;
    };
    std::vector<char> wanted(kDigits);
    for (int64_t i = 0; i < operands_.rank_count; ++i) wanted[digit_of(i)] = 1;
    std::vector<int64_t> begins(kDigits);  // the first place of a digit's items among the collected ones
    int64_t all = 0;
    for (int digit = 0; digit < kDigits; ++digit) {
      for (int64_t part = 0; part < parts; ++part) {  // counts become places of the parts' items
        const int64_t count = counts[part][digit];
        counts[part][digit] = all;
        if (part == 0) begins[digit] = all;
        if (wanted[digit]) all += count;
      }
    }
    std::vector<Word> items(all);
    for_each(parts, [&](int64_t part) {
      for_part(part, [&](Word rank) {
        const auto digit = rank >> kShift;
        if (wanted[digit]) items[counts[part][digit]++] = rank;
      });
    });
    for (int64_t i = 0; i < operands_.rank_count; ++i) {
      const int64_t digit = digit_of(i);
      const auto first = items.begin() + begins[digit];
      const auto found = first + (operands_.rank(row_, i) - before[digit]);
      std::nth_element(first, found, first + (before[digit + 1] - before[digit]));
      values[i] = key_of_rank(order_, *found);
    }
  }

 private:
  template <typename Visit>
  void for_part(int64_t part, Visit visit) const {
    const int64_t end = std::min(live_, (part + 1) * kOrderStatisticsPart);
    for (int64_t i = part * kOrderStatisticsPart; i < end; ++i) visit(order_.rank(order_.encode(keys_[i])));
  }

  const OrderStatisticsOperands& operands_;
  Order order_;
  int64_t row_;
  int64_t live_;
  const Word* keys_;
};

}  // namespace

void cpu::order_statistics(const Call& call, Executor& executor) {
  const OrderStatisticsOperands operands(call);
  if (operands.rank_count == 0) return;
  const auto in_this_thread = [](int64_t count, const auto& body) {
    for (int64_t i = 0; i < count; ++i) body(i);
  };
  const auto together = [&](int64_t count, const auto& body) { parallel_for(executor, count, body); };
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    if (operands.rows < executor.concurrency()) {
      for (int64_t row = 0; row < operands.rows; ++row) RowStatistics(operands, order, row).run(together);
    } else {
      parallel_for(executor, operands.rows,
                   [&](int64_t row) { RowStatistics(operands, order, row).run(in_this_thread); });
    }
  });
}

}  // namespace mgpu
