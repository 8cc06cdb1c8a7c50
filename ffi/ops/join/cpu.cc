// Tiles of a merge find the partners of A's items, which tasks then expand into output rows.
#include "ops/sorted_pair/cpu.h"

#include <algorithm>
#include <vector>

#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "ops/join/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

constexpr int64_t kTile = cpu::kJoinTile;

template <typename Order>
class Join {
  using Word = typename Order::Word;

 public:
  Join(const JoinOperands& operands, int64_t row, Order order)
      : operands_(operands),
        tiles_{operands.pair, order},
        row_(row),
        order_(order),
        a_live_(operands.pair.a.live(row)),
        b_live_(operands.pair.b.live(row)),
        a_keys_(static_cast<const Word*>(operands.pair.a.keys) + row * operands.pair.a.stride),
        b_keys_(static_cast<const Word*>(operands.pair.b.keys) + row * operands.pair.b.stride) {}

  void run(cpu::Executor& executor) {
    const int64_t row_slots = operands_.pair.row_slots();
    const cpu::MergeTasks<Order> tasks(executor, tiles_, {row_ * row_slots, (row_ + 1) * row_slots}, kTile);
    const int64_t tiles = tasks.count();
    partners_.resize(a_live_);
    starts_.resize(a_live_ + 1);
    std::vector<int64_t> rows(tiles + 1);       // first the output rows that each tile makes, later those before it
    std::vector<int64_t> unmatched(tiles + 1);  // the same for items of B without a partner
    cpu::parallel_for(executor, tiles, [&](int64_t tile) {
      walk(
          tasks, tile, [&](int64_t i, int64_t j) { rows[tile + 1] += find_partners(i, j); },
          [&](int64_t i, int64_t j) { unmatched[tile + 1] += operands_.keep_b && is_unmatched(i, j); });
    });
    for (int64_t tile = 0; tile < tiles; ++tile) {
      rows[tile + 1] += rows[tile];
      unmatched[tile + 1] += unmatched[tile];
    }
    const int64_t paired = rows[tiles];
    operands_.set_count(row_, paired + unmatched[tiles]);

    cpu::parallel_for(executor, tiles, [&](int64_t tile) {
      int64_t start = rows[tile];
      int64_t slot = paired + unmatched[tile];
      walk(
          tasks, tile,
          [&](int64_t i, int64_t) {
            starts_[i] = start;
            start += partners_[i].count;
          },
          [&](int64_t i, int64_t j) {
            if (operands_.keep_b && is_unmatched(i, j)) set(slot++, -1, j);
          });
    });
    starts_[a_live_] = paired;
    cpu::parallel_for(executor, ceil_div(std::min(paired, operands_.size), kTile), [&](int64_t part) {
      expand(part * kTile, std::min({(part + 1) * kTile, paired, operands_.size}));
    });
    for (int64_t slot = paired + unmatched[tiles]; slot < operands_.size; ++slot) set(slot, -1, -1);
  }

 private:
  // `count` is the number of output rows, and `first` is -1 without a partner.
  struct Partners {
    int64_t count = 0;
    int64_t first = -1;
  };

  Word a(int64_t i) const { return order_.encode(a_keys_[i]); }
  Word b(int64_t j) const { return order_.encode(b_keys_[j]); }
  bool less(Word x, Word y) const { return order_.less(x, y); }

  // Walks a task's part of the merge of A and B, A first among equals, with take_a(i, j) or take_b(i, j): i items of A
  // and j of B come before the one taken.
  template <typename TakeA, typename TakeB>
  void walk(const cpu::MergeTasks<Order>& tasks, int64_t task, TakeA take_a, TakeB take_b) const {
    tasks.for_each_tile(task, [&](const MergeTile& tile) {
      const int64_t a_end = tile.a + tile.a_count;
      const int64_t b_end = tile.b + tile.b_count;
      int64_t i = tile.a, j = tile.b;
      while (i < a_end || j < b_end) {
        if (i < a_end && (j >= b_end || !less(b(j), a(i)))) {
          take_a(i++, j);
        } else {
          take_b(i, j++);
        }
      }
    });
  }

  // Returns the number of output rows. Partners start at item j of B.
  int64_t find_partners(int64_t i, int64_t j) {
    const Word key = a(i);
    const int64_t end = galloping_partition_point(j, b_live_, [&](int64_t k) { return !less(key, b(k)); });
    partners_[i] = end > j ? Partners{end - j, j} : Partners{operands_.keep_a, -1};
    return partners_[i].count;
  }

  // i items of A come before item j of B.
  bool is_unmatched(int64_t i, int64_t j) const { return i == 0 || less(a(i - 1), b(j)); }

  // Writes output rows that come from items of A.
  void expand(int64_t begin, int64_t end) const {
    int64_t i = partition_point(int64_t{0}, a_live_, [&](int64_t i) { return starts_[i + 1] <= begin; });
    for (int64_t slot = begin; slot < end && i < a_live_; ++i) {
      const int64_t first = partners_[i].first;
      for (; slot < std::min(end, starts_[i + 1]); ++slot) set(slot, i, first < 0 ? -1 : first + (slot - starts_[i]));
    }
  }

  void set(int64_t slot, int64_t a_index, int64_t b_index) const {
    if (slot >= operands_.size) return;
    operands_.a_indices.set(row_ * operands_.size + slot, a_index);
    operands_.b_indices.set(row_ * operands_.size + slot, b_index);
  }

  const JoinOperands& operands_;
  MergeTiles<Order> tiles_;
  int64_t row_;
  Order order_;
  int64_t a_live_;
  int64_t b_live_;
  const Word* a_keys_;
  const Word* b_keys_;
  std::vector<Partners> partners_;
  std::vector<int64_t> starts_;  // where the rows of each item of A start in the output
};

}  // namespace

void cpu::join(const Call& call, Executor& executor) {
  const JoinOperands operands(call);
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    for (int64_t row = 0; row < operands.pair.rows; ++row) Join(operands, row, order).run(executor);
  });
}

}  // namespace mgpu
