// top_k on the CPU. Items that come before the k-th best item so far are collected. From time to time, all but the best
// k of them are dropped, which gives a better k-th item. Most blocks of items hold no such item, and cost one
// vectorized comparison per item.
#include <algorithm>
#include <vector>

#include "cpu/entries.h"
#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "ops/top_k/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

using cpu::kTopKPart;

// The best k of the items added so far, in input order.
template <typename Order>
class Best {
  using Word = typename Order::Word;
  static constexpr int64_t kBlock = 64;

 public:
  using Item = Entry<Word, int64_t>;

  Best(Order order, int64_t k, int64_t capacity)
      : order_(order),
        k_(k),
        room_(std::min(capacity, k + std::max<int64_t>(8 * kBlock, 3 * k))),
        limit_(std::min(room_, std::max(kBlock, 2 * k))),
        scratch_(2 * (room_ + kBlock), room_ + kBlock),
        items_(scratch_.first()),
        ranks_(scratch_.second()) {}

  // The best k of the keys at positions [begin, end).
  Best(Order order, int64_t k, const Word* keys, int64_t begin, int64_t end) : Best(order, k, end - begin) {
    if (k > 0) add_keys(keys, begin, end);
  }

  void add_keys(const Word* keys, int64_t begin, int64_t end) {
    const Order order = order_;
    for (; begin < end; begin += kBlock) {
      const int64_t block_end = std::min(end, begin + kBlock);
      if (!takes_all_) {
        const Word bound = bound_;
        if (block_end - begin == kBlock) {
          int before = 0;
          for (int64_t i = 0; i < kBlock; ++i) before += order.encode(keys[begin + i]) < bound;
          if (before == 0) continue;
        }
        for (int64_t i = begin; i < block_end; ++i) {
          const Word code = order.encode(keys[i]);
          items_[count_] = {code, i};
          count_ += code < bound;
        }
      } else {
        for (int64_t i = begin; i < block_end; ++i) items_[count_++] = {order.encode(keys[i]), i};
      }
      if (count_ > limit_) keep_best();
    }
  }

  void add(const Item& item) {
    items_[count_] = item;
    count_ += takes_all_ || item.code < bound_;
    if (count_ > limit_) keep_best();
  }

  // Drops all but the best k. Returns how many items remain.
  int64_t keep_best() {
    if (count_ <= k_) return count_;
    for (int64_t i = 0; i < count_; ++i) ranks_[i] = order_.rank(items_[i].code);
    std::nth_element(ranks_, ranks_ + k_ - 1, ranks_ + count_);
    const Word last = ranks_[k_ - 1];
    int64_t before = 0, kept = 0;
    for (int64_t i = 0; i < count_; ++i) before += order_.rank(items_[i].code) < last;
    for (int64_t i = 0, equal = k_ - before; kept < k_; ++i) {
      const Word rank = order_.rank(items_[i].code);
      items_[kept] = items_[i];
      kept += rank < last || (rank == last && equal-- > 0);
    }
    count_ = k_;
    limit_ = room_;
    takes_all_ = false;
    // A code below the bound has a rank below `last`, because a rank is the lowest of the codes that compare equal.
    // Only the codes equal to code 0 are an exception.
    bound_ = order_.rank(Word{0}) == last ? Word{0} : last;
    return count_;
  }

  // Sorts the best k. Returns how many there are.
  int64_t sort() {
    keep_best();
    if (count_ > 0) sort_entries<false>(items_, items_ + room_ + kBlock, count_, order_);
    return count_;
  }

  const Item* items() const { return items_; }

 private:
  Order order_;
  int64_t k_;
  int64_t room_;
  int64_t limit_;  // the most items before some are dropped; low at first, to get a bound soon
  ThreadScratch<Item, Word> scratch_;
  Item* items_;
  Word* ranks_;
  int64_t count_ = 0;
  bool takes_all_ = true;
  Word bound_ = 0;  // codes below it come before the k-th best
};

template <typename Order>
class TopK {
  using Word = typename Order::Word;
  using Item = typename Best<Order>::Item;

 public:
  TopK(const TopKOperands& operands, Order order) : operands_(operands), order_(order) {}

  void run(cpu::Executor& executor) const {
    const int64_t rows = operands_.rows, length = operands_.length;
    const int64_t parts = ceil_div(length, std::max(kTopKPart, 8 * operands_.k));
    if (parts > 1 && rows < 4 * executor.concurrency()) return run_parts(executor, parts);
    const int64_t group = std::max<int64_t>(1, kTopKPart / 4 / std::max<int64_t>(1, length));  // rows per task
    cpu::parallel_for(executor, ceil_div(rows, group), [&](int64_t task) {
      for (int64_t row = task * group; row < std::min(rows, (task + 1) * group); ++row) {
        Best<Order> best = best_of(row, 0, operands_.live(row));
        store(row, best);
      }
    });
  }

 private:
  // Finds the best items of each part of a row, then selects the row's best from these.
  void run_parts(cpu::Executor& executor, int64_t parts) const {
    const int64_t k = operands_.k, width = ceil_div(operands_.length, parts);
    std::vector<std::vector<Item>> found(operands_.rows * parts);
    cpu::parallel_for(executor, operands_.rows * parts, [&](int64_t i) {
      const int64_t row = i / parts, part = i - row * parts, live = operands_.live(row);
      Best<Order> best = best_of(row, std::min(live, part * width), std::min(live, (part + 1) * width));
      const int64_t count = best.keep_best();
      found[i].assign(best.items(), best.items() + count);
    });
    cpu::parallel_for(executor, operands_.rows, [&](int64_t row) {
      Best<Order> best(order_, k, parts * k);
      for (int64_t part = 0; part < parts; ++part) {
        for (const Item& item : found[row * parts + part]) best.add(item);
      }
      store(row, best);
    });
  }

  Best<Order> best_of(int64_t row, int64_t begin, int64_t end) const {
    return {order_, operands_.k, static_cast<const Word*>(operands_.x) + row * operands_.length, begin, end};
  }

  void store(int64_t row, Best<Order>& best) const {
    if (operands_.k == 0) return;
    const int64_t count = best.sort(), at = row * operands_.k;
    auto* const values = static_cast<Word*>(operands_.values) + at;
    for (int64_t i = 0; i < operands_.k; ++i) {
      values[i] = i < count ? order_.decode(best.items()[i].code) : Word{0};
      operands_.indices.set(at + i, i < count ? best.items()[i].payload : -1);
    }
  }

  const TopKOperands& operands_;
  Order order_;
};

}  // namespace

void cpu::top_k(const Call& call, Executor& executor) {
  const TopKOperands operands(call);
  dispatch_order(call, operands.key_type, operands.largest,
                 [&](auto order) { TopK<decltype(order)>(operands, order).run(executor); });
}

}  // namespace mgpu
