// Searches for several needles go in step, because a single search waits for memory.
#include <algorithm>

#include "algorithm/partition_points.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_search/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

// Looks up kCount needles of a problem, from needle `first` on. The last needle stands for those past the end. There
// must be a needle and a segment.
template <int kCount, typename Index, typename Order>
void search_group(const SegmentedSearchOperands& operands, const Order& order, int64_t problem, int64_t first) {
  using Word = typename Order::Word;
  const SortedPair& pair = operands.pair;
  const Word* const needles = static_cast<const Word*>(pair.a.keys) + problem * pair.a.stride;
  const Word* const haystack = static_cast<const Word*>(pair.b.keys) + problem * pair.b.stride;
  const Index* const ids = static_cast<const Index*>(operands.ids) + problem * operands.ids_stride;
  const Index* const heads = static_cast<const Index*>(operands.heads) + problem * operands.heads_stride;
  const Index* const ends = static_cast<const Index*>(operands.ends) + problem * operands.ends_stride;
  const int64_t needles_live = pair.a.live(problem), segments = operands.segments;
  const auto live = static_cast<Index>(pair.b.live(problem));
  const auto needle = [&](int k) { return minimum(first + k, pair.a.length - 1); };

  Word codes[kCount];
  Index segment[kCount];
  for (int k = 0; k < kCount; ++k) segment[k] = operands.ids ? ids[needle(k)] : Index{0};
  for (int k = 0; k < kCount; ++k) codes[k] = needles[needle(k)];
  bool has_segment[kCount];
  Range<Index> searches[kCount];
  Index stops[kCount];
  for (int k = 0; k < kCount; ++k) {
    has_segment[k] = (needle(k) < needles_live) & (segment[k] >= 0) & (segment[k] < segments);
    segment[k] = has_segment[k] ? segment[k] : Index{0};
    const Index begin = clamp<Index>(heads[segment[k]], 0, live);
    // The last segment may have no end of its own. Then the value that is read is not used.
    const Index next = *(operands.ends ? ends + segment[k] : heads + segment[k] + (segment[k] + 1 < segments));
    stops[k] = clamp<Index>(!operands.ends && segment[k] + 1 >= segments ? live : next, begin, live);
    searches[k] = {begin, stops[k]};
    codes[k] = order.rank(order.encode(codes[k]));
  }
  partition_points(
      searches, [&](int, Index i) { return haystack[i]; },
      [&](int k, Word bits) {
        const Word code = order.rank(order.encode(bits));
        return (code < codes[k]) | (operands.right & (code == codes[k]));
      });
  Index* const found = static_cast<Index*>(operands.positions.data) + problem * pair.a.length;
  for (int k = 0; k < kCount; ++k) {
    const Index position = searches[k].begin;
    const auto is_equal = [&] { return order.rank(order.encode(haystack[position])) == codes[k]; };
    const bool is_found = has_segment[k] && (!operands.exact || (position < stops[k] && is_equal()));
    found[needle(k)] = is_found ? position : Index{-1};
  }
}

template <int kAtOnce, typename Index, typename Order>
void search_groups(const SegmentedSearchOperands& operands, Order order, cpu::Executor& executor) {
  constexpr int64_t kTask = 1 << 8;  // groups
  const int64_t row_groups = ceil_div<int64_t>(operands.pair.a.length, kAtOnce);
  const int64_t groups = operands.pair.rows * row_groups;
  cpu::parallel_for(executor, ceil_div(groups, kTask), [&](int64_t task) {
    for (int64_t group = task * kTask; group < std::min(groups, (task + 1) * kTask); ++group) {
      const int64_t problem = group / row_groups;
      const int64_t first = (group - problem * row_groups) * kAtOnce;
      search_group<kAtOnce, Index>(operands, order, problem, first);
    }
  });
}

// With one segment, all searches take equally many steps and need no bounds of their own. Each needle is replaced by
// the lowest or the highest code of the keys that equal it (zeros of both signs, or NaNs), so codes of the haystack are
// compared as they are.
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
