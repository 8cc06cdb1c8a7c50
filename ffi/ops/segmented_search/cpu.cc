// segmented_search on the CPU: tasks look up several needles at a time, as a single search waits for memory.
#include <algorithm>

#include "ops/common/dispatch.h"
#include "ops/segmented_search/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

// The needles of a problem are looked up in groups of kAtOnce.
template <int kAtOnce, typename Index, typename Order>
void search_groups(const SegmentedSearchOperands& operands, Order order, cpu::Executor& executor) {
  constexpr int64_t kTask = 1 << 8;  // groups
  const int64_t row_groups = ceil_div<int64_t>(operands.pair.a.length, kAtOnce);
  const int64_t groups = operands.pair.rows * row_groups;
  cpu::parallel_for(executor, ceil_div(groups, kTask), [&](int64_t task) {
    for (int64_t group = task * kTask; group < std::min(groups, (task + 1) * kTask); ++group) {
      const int64_t problem = group / row_groups;
      const int64_t first = (group - problem * row_groups) * kAtOnce;
      operands.search<kAtOnce, Index>(order, problem, first, 1, [](auto&) {});
    }
  });
}

}  // namespace

void cpu::segmented_search(const Call& call, Executor& executor) {
  constexpr int kAtOnce = 16;
  const SegmentedSearchOperands operands(call);
  const int64_t needles = operands.pair.a.length;
  operands.dispatch_index([&](auto index) {
    using Index = decltype(index);
    if (operands.segments == 0) {
      std::fill_n(static_cast<Index*>(operands.positions.data), operands.pair.rows * needles, Index{-1});
      return;
    }
    dispatch_order(call, operands.key_type, false, [&](auto order) {
      needles < kAtOnce ? search_groups<1, Index>(operands, order, executor)
                        : search_groups<kAtOnce, Index>(operands, order, executor);
    });
  });
}

}  // namespace mgpu
