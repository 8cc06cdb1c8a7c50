// The first k items of a sequence by a given order. Items that come before the k-th best
// item so far are collected, and from time to time all but the best k of them are dropped.
#pragma once

#include <algorithm>
#include <vector>

#include "algorithm/index_vector.h"
#include "cpu/entries.h"
#include "cpu/policy.h"
#include "runtime/executor.h"

namespace mgpu::cpu {

// Items are added and kept in input order.
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

  Best(Order order, int64_t k, const Word* keys, int64_t begin, int64_t end) : Best(order, k, end - begin) {
    if (k > 0) add_keys(keys, begin, end);
  }

  Best(Order order, int64_t k, const std::vector<std::vector<Item>>& lists)
      : Best(order, k, k * static_cast<int64_t>(lists.size())) {
    for (const auto& list : lists) {
      for (const Item& item : list) {
        items_[count_] = item;
        count_ += takes_all_ || item.code < bound_;
        if (count_ > limit_) keep_best();
      }
    }
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
    // A code below the bound has a rank (Order::rank) below `last`, because a rank is the lowest of the codes that
    // compare equal. Only the codes equal to code 0 are an exception.
    bound_ = order_.rank(Word{0}) == last ? Word{0} : last;
    return count_;
  }

  int64_t sort() {
    constexpr int64_t kFew = 16;
    if (count_ > kFew) keep_best();
    if (count_ > 0) sort_entries<false>(items_, items_ + room_ + kBlock, count_, order_);
    return std::min(count_, k_);
  }

  const Item* items() const { return items_; }

  // Stores the best k, sorted, from place `to` on, and their positions, which count from `begin`. If there are fewer
  // than k items, the other values are 0, and the other positions -1.
  void store(void* values, const IndexResult& indices, int64_t to, int64_t begin) {
    const int64_t count = k_ > 0 ? sort() : 0;
    for (int64_t i = 0; i < k_; ++i) {
      static_cast<Word*>(values)[to + i] = i < count ? order_.decode(items_[i].code) : Word{0};
      indices.set(to + i, i < count ? begin + items_[i].payload : -1);
    }
  }

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
Best<Order> best_of_parts(Executor& executor, Order order, int64_t k, const typename Order::Word* keys, int64_t size) {
  const int64_t parts = ceil_div(size, std::max(kTopKPart, 8 * k));
  if (parts <= 1) return {order, k, keys, 0, size};
  const int64_t width = ceil_div(size, parts);
  std::vector<std::vector<typename Best<Order>::Item>> found(parts);
  parallel_for(executor, parts, [&](int64_t part) {
    Best<Order> best(order, k, keys, std::min(size, part * width), std::min(size, (part + 1) * width));
    const int64_t count = best.keep_best();
    found[part].assign(best.items(), best.items() + count);
  });
  return {order, k, found};
}

}  // namespace mgpu::cpu
