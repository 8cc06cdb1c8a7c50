// Spreads what walks along a merge over threads: equal runs of slots, a task each.
#pragma once

#include <algorithm>

#include "algorithm/serial_merge.h"
#include "algorithm/sorted_pair.h"
#include "cpu/executor.h"

namespace mgpu::cpu {

// Slots of a task: long enough that two searches of 2^26 items are nothing beside it.
constexpr int64_t kMergeTaskSlots = 1 << 16;

// Calls body(tile) for tiles that cover every slot once: each within one row and one task.
template <typename Order, typename Body>
void for_each_merge_tile(Executor& executor, const MergeTiles<Order>& tiles, const Body& body) {
  const int64_t slots = tiles.pair.slots();
  const auto find = [](int64_t begin, int64_t end, auto before) { return partition_point(begin, end, before); };
  parallel_for(executor, ceil_div(slots, kMergeTaskSlots), [&](int64_t task) {
    const int64_t end = std::min(slots, (task + 1) * kMergeTaskSlots);
    MergeTile tile = tiles.tile_from(task * kMergeTaskSlots, end, kMergeTaskSlots, find);
    for (; tile.size > 0; tile = tiles.tile_after(tile, end, kMergeTaskSlots, find)) body(tile);
  });
}

// walk_merge over the live items of a tile; i and j count from the row's start.
template <typename Order, typename Step, typename RestA, typename RestB>
void walk_merge_tile(const MergeTiles<Order>& tiles, const MergeTile& tile, const Step& step, const RestA& rest_a,
                     const RestB& rest_b) {
  const Order order = tiles.order;
  using Word = typename Order::Word;
  const Word* const a = static_cast<const Word*>(tiles.pair.a.keys) + tile.row * tiles.pair.a.stride + tile.a;
  const Word* const b = static_cast<const Word*>(tiles.pair.b.keys) + tile.row * tiles.pair.b.stride + tile.b;
  walk_merge(
      tile.a_count, tile.b_count, [=](int64_t i) { return order.encode(a[i]); },
      [=](int64_t j) { return order.encode(b[j]); }, [=](Word x, Word y) { return order.less(x, y); },
      [&](int64_t i, int64_t j, int64_t take_b) { step(tile.a + i, tile.b + j, take_b); },
      [&](int64_t i, int64_t end, int64_t j) { rest_a(tile.a + i, tile.a + end, tile.b + j); },
      [&](int64_t j, int64_t end, int64_t i) { rest_b(tile.b + j, tile.b + end, tile.a + i); });
}

}  // namespace mgpu::cpu
