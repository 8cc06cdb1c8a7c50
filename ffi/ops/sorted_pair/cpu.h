#pragma once

#include <algorithm>
#include <vector>

#include "algorithm/serial_merge.h"
#include "algorithm/sorted_pair.h"
#include "cpu/policy.h"
#include "runtime/executor.h"

namespace mgpu::cpu {

// Tasks of `width` slots each, over slots that begin and end at the edges of rows. If keys are not sorted, the splits
// of neighbouring tasks may contradict each other. Clamping still puts each item in exactly one task, so no two tasks
// write to the same place.
template <typename Order>
class MergeTasks {
 public:
  MergeTasks(Executor& executor, const MergeTiles<Order>& tiles, Range<int64_t> slots, int64_t width)
      : tiles_(tiles), slots_(slots), width_(width), a_before_(ceil_div(slots.size(), width) + 1) {
    parallel_for(executor, count() - 1, [&](int64_t i) {
      const MergeTile tile = tiles_.slots_from(first_slot(i + 1), slots_.end, width_);
      a_before_[i + 1] = tiles_.split(tile.row, tile.begin, [](auto... search) { return partition_point(search...); });
    });
    for (int64_t task = 0; task + 1 < count(); ++task) {
      const int64_t end = first_slot(task + 1);
      const int64_t row_begin = end - tiles_.slots_from(end, slots_.end, width_).begin;
      const int64_t begin = maximum(row_begin, first_slot(task));
      MergeTile last = tiles_.slots_from(begin, end, width_);
      tiles_.set_items(last, begin == row_begin ? 0 : a_before_[task], a_before_[task + 1]);
      a_before_[task + 1] = last.a + last.a_count;
    }
  }

  int64_t count() const { return static_cast<int64_t>(a_before_.size()) - 1; }

  template <typename Body>
  void for_each_tile(int64_t task, const Body& body) const {
    const int64_t end = minimum(slots_.end, first_slot(task + 1));
    int64_t a_begin = a_before_[task];
    for (int64_t slot = first_slot(task); slot < end; a_begin = 0) {
      MergeTile tile = tiles_.slots_from(slot, end, width_);
      slot += tile.size;
      const bool ends_row = tile.begin + tile.size == tiles_.pair.row_slots();
      tiles_.set_items(tile, a_begin, ends_row ? tiles_.pair.a.live(tile.row) : a_before_[task + 1]);
      body(tile);
    }
  }

 private:
  int64_t first_slot(int64_t task) const { return slots_.begin + task * width_; }

  const MergeTiles<Order>& tiles_;
  Range<int64_t> slots_;
  int64_t width_;
  std::vector<int64_t> a_before_;  // items of A before a task's first slot, in its row
};

// A tile is within one row and one task.
template <typename Order, typename Body>
void for_each_merge_tile(Executor& executor, const MergeTiles<Order>& tiles, const Body& body) {
  const MergeTasks<Order> tasks(executor, tiles, {0, tiles.pair.slots()}, kMergeTile);
  parallel_for(executor, tasks.count(), [&](int64_t task) { tasks.for_each_tile(task, body); });
}

// i and j count from the row's start.
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
