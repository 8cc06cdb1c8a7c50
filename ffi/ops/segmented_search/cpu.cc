// segmented_search on the CPU: a task looks up several needles at a time, because a single search waits for memory.
#include <algorithm>

#include "ops/common/dispatch.h"
#include "ops/segmented_search/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

// Looks up the needles of a problem in groups of kAtOnce.
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

// If there is one segment, all searches are in the same range. So they take equally many steps and need no bounds of
// their own; a step is a read, a comparison and an addition. Each needle is replaced by the lowest or the highest of
// the codes that are equal to it, so the codes of the haystack need no ranks.
template <bool kRight, typename Index, typename Order>
void search_one_segment(const SegmentedSearchOperands& operands, Order order, cpu::Executor& executor) {
  using Word = typename Order::Word;
  constexpr int64_t kTask = 1 << 12, kAtOnce = 16;
  const int64_t length = operands.pair.a.length, chunks = ceil_div(length, kTask);
  cpu::parallel_for(executor, operands.pair.rows * chunks, [&](int64_t task) {
    const int64_t problem = task / chunks, first = (task - problem * chunks) * kTask;
    const Word* const needles = static_cast<const Word*>(operands.pair.a.keys) + problem * operands.pair.a.stride;
    const Word* const haystack = static_cast<const Word*>(operands.pair.b.keys) + problem * operands.pair.b.stride;
    const Index* const ids = static_cast<const Index*>(operands.ids) + problem * operands.ids_stride;
    const Range<int64_t> range = operands.first_segment<Index>(problem);
    const int64_t needles_live = operands.pair.a.live(problem);
    Index* const positions = static_cast<Index*>(operands.positions.data) + problem * length;
    for (int64_t i = first; i < std::min(length, first + kTask); i += kAtOnce) {
      const int64_t count = std::min(kAtOnce, length - i);
      Word codes[kAtOnce];
      const Word* found[kAtOnce];
      for (int64_t k = 0; k < kAtOnce; ++k) {
        const Word code = order.encode(needles[i + std::min(k, count - 1)]);
        codes[k] = kRight ? order.last_equal(code) : order.rank(code);
        found[k] = haystack + range.begin;
      }
      const auto step = [&](int64_t probe, int64_t size) {
        for (int64_t k = 0; k < kAtOnce; ++k) {
          const Word code = order.encode(found[k][probe]);
          const bool before = kRight ? code <= codes[k] : code < codes[k];
          found[k] += size & -static_cast<int64_t>(before);
        }
      };
      int64_t left = range.size();
      for (; left > 1; left -= left / 2) step(left / 2 - 1, left / 2);
      if (left == 1) step(0, 1);
      for (int64_t k = 0; k < count; ++k) {
        bool is_found = (i + k < needles_live) && (!operands.ids || ids[i + k] == 0);
        if (operands.exact) {
          is_found = is_found && found[k] < haystack + range.end && order.rank(order.encode(*found[k])) == codes[k];
        }
        positions[i + k] = is_found ? static_cast<Index>(found[k] - haystack) : Index{-1};
      }
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
      if (operands.segments == 1 && needles > 0) {
        return operands.right ? search_one_segment<true, Index>(operands, order, executor)
                              : search_one_segment<false, Index>(operands, order, executor);
      }
      needles < kAtOnce ? search_groups<1, Index>(operands, order, executor)
                        : search_groups<kAtOnce, Index>(operands, order, executor);
    });
  });
}

}  // namespace mgpu
