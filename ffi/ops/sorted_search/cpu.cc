// sorted_match walks along the merge of both operands, and so does sorted_search unless needles are few. An item's
// position in the other operand is the number of that operand's items that the walk has passed.
#include "ops/sorted_pair/cpu.h"

#include <algorithm>
#include <atomic>

#include "ops/common/dispatch.h"
#include "ops/sorted_search/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

// A step of the walk writes the positions of the next items, also of one that it does not take: a later step overwrites
// that item's position.

template <typename Index, typename Order>
void search_by_merging(const SortedSearchOperands& operands, Order order, cpu::Executor& executor) {
  const MergeTiles<Order> tiles{operands.pair, order};
  cpu::for_each_merge_tile(executor, tiles, [&](const MergeTile& tile) {
    Index* const positions = static_cast<Index*>(operands.positions.data) + tile.row * operands.needles().length;
    const auto set = [=](int64_t needle, int64_t end, int64_t position) {
      std::fill(positions + needle, positions + end, static_cast<Index>(position));
    };
    const auto skip = [](int64_t, int64_t, int64_t) {};
    if (operands.needles_are_b) {
      cpu::walk_merge_tile(
          tiles, tile, [=](int64_t i, int64_t j, int64_t) { positions[j] = static_cast<Index>(i); }, skip, set);
    } else {
      cpu::walk_merge_tile(
          tiles, tile, [=](int64_t i, int64_t j, int64_t) { positions[i] = static_cast<Index>(j); }, set, skip);
    }
    const Range<int64_t> dead = operands.needles_are_b ? tiles.b_dead(tile) : tiles.a_dead(tile);
    set(dead.begin, dead.end, -1);
  });
}

template <typename Index, typename Order>
void search_each_needle(const SortedSearchOperands& operands, Order order, cpu::Executor& executor) {
  using Word = typename Order::Word;
  constexpr int64_t kTask = 1 << 10;
  const SortedRows& needles = operands.needles();
  const SortedRows& haystack = operands.haystack();
  const int64_t total = operands.pair.rows * needles.length;
  cpu::parallel_for(executor, ceil_div(total, kTask), [&](int64_t task) {
    for (int64_t slot = task * kTask; slot < std::min(total, (task + 1) * kTask); ++slot) {
      const int64_t row = slot / needles.length;
      static_cast<Index*>(operands.positions.data)[slot] = static_cast<Index>(operands.search(
          order, row, slot - row * needles.length, static_cast<const Word*>(needles.keys) + row * needles.stride,
          static_cast<const Word*>(haystack.keys) + row * haystack.stride));
    }
  });
}

template <typename Visit>
void dispatch_index(bool wide, Visit visit) {
  wide ? visit(int64_t{}) : visit(int32_t{});
}

template <typename Index, typename Order>
void match(const SortedMatchOperands& operands, Order order, cpu::Executor& executor) {
  const MergeTiles<Order> tiles{operands.pair, order};
  const SortedPair& pair = operands.pair;
  std::fill_n(static_cast<Index*>(operands.a.count.data), pair.rows, 0);
  std::fill_n(static_cast<Index*>(operands.b.count.data), pair.rows, 0);
  cpu::for_each_merge_tile(executor, tiles, [&](const MergeTile& tile) {
    Index* const a_index = static_cast<Index*>(operands.a.index.data) + tile.row * pair.a.length;
    Index* const b_index = static_cast<Index*>(operands.b.index.data) + tile.row * pair.b.length;
    bool* const a_match = operands.a.match + tile.row * pair.a.length;
    bool* const b_match = operands.b.match + tile.row * pair.b.length;
    const int64_t b_live = pair.b.live(tile.row);
    // An item of A comes before all items of B that are not less, and can only equal the first of these. An item of B
    // comes after all items of A that are not greater, and can only equal the last of these.
    const auto not_less = [&](int64_t i, int64_t j) {
      return !order.less(tiles.a_code(tile.row, i), tiles.b_code(tile.row, j));
    };
    const auto set_a = [&](int64_t i, int64_t j) {
      a_index[i] = static_cast<Index>(j);
      a_match[i] = j < b_live && not_less(i, j);
    };
    const auto set_b = [&](int64_t j, int64_t i) {
      b_index[j] = static_cast<Index>(i);
      b_match[j] = i > 0 && not_less(i - 1, j);
    };
    cpu::walk_merge_tile(
        tiles, tile,
        [&](int64_t i, int64_t j, int64_t) {
          set_a(i, j);
          set_b(j, i);
        },
        [&](int64_t i, int64_t end, int64_t j) {
          for (; i < end; ++i) set_a(i, j);
        },
        [&](int64_t j, int64_t end, int64_t i) {
          for (; j < end; ++j) set_b(j, i);
        });
    const auto finish = [&](const SortedMatchOperands::Side& side, Index* index, bool* match, int64_t begin,
                            int64_t count, Range<int64_t> dead) {
      std::fill(index + dead.begin, index + dead.end, Index{-1});
      std::fill(match + dead.begin, match + dead.end, false);
      std::atomic_ref(static_cast<Index*>(side.count.data)[tile.row])
          .fetch_add(static_cast<Index>(std::count(match + begin, match + begin + count, true)));
    };
    finish(operands.a, a_index, a_match, tile.a, tile.a_count, tiles.a_dead(tile));
    finish(operands.b, b_index, b_match, tile.b, tile.b_count, tiles.b_dead(tile));
  });
}

}  // namespace

void cpu::sorted_search(const Call& call, Executor& executor) {
  const SortedSearchOperands operands(call);
  if (operands.pair.rows * operands.needles().length == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    dispatch_index(operands.positions.wide, [&](auto index) {
      operands.prefers_binary_search() ? search_each_needle<decltype(index)>(operands, order, executor)
                                       : search_by_merging<decltype(index)>(operands, order, executor);
    });
  });
}

void cpu::sorted_match(const Call& call, Executor& executor) {
  const SortedMatchOperands operands(call);
  if (operands.pair.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    dispatch_index(operands.a.count.wide, [&](auto index) { match<decltype(index)>(operands, order, executor); });
  });
}

}  // namespace mgpu
