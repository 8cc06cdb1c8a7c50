// Finds the items at some ranks, which are positions in the sorted order of a sequence. Keys are read
// as words that compare as the keys do (Order::rank). Among many items, counts of the words' highest
// digits show which digit each sought item has. The item is then selected from those with this digit.
#pragma once

#include <algorithm>
#include <vector>

#include "algorithm/key_order.h"
#include "cpu/entries.h"
#include "cpu/policy.h"
#include "ops/order_statistics/operands.h"

namespace mgpu::cpu {

inline constexpr auto in_this_thread = [](int64_t count, const auto& body) {
  for (int64_t i = 0; i < count; ++i) body(i);
};

template <typename Order>
class RankSearch {
  using Word = typename Order::Word;
  static constexpr int kBits = std::min<int>(kRankDigitBits, 8 * sizeof(Word));
  static constexpr int kDigits = 1 << kBits;
  static constexpr int kShift = 8 * sizeof(Word) - kBits;
  // From this many items on, counting takes less time than selecting from all of them.
  static constexpr int64_t kCountedItems = 1 << 11;

 public:
  RankSearch(Order order, const Word* keys, int64_t size) : order_(order), keys_(keys), size_(size) {}

  // Calls put(i, key) for each i below rank_count with the key at rank(i). for_each(count, body) runs body(i) for each
  // i below count.
  template <typename RankOf, typename Put, typename ForEach>
  void find(int64_t rank_count, RankOf rank, Put put, ForEach for_each) const {
    if (size_ < kCountedItems) return select(rank_count, rank, put);
    const int64_t parts = ceil_div(size_, kOrderStatisticsPart);
    std::vector<std::vector<int64_t>> counts(parts, std::vector<int64_t>(kDigits));
    for_each(parts, [&](int64_t part) { for_part(part, [&](Word word) { ++counts[part][word >> kShift]; }); });
    std::vector<int64_t> before(kDigits + 1);
    for (int digit = 0; digit < kDigits; ++digit) {
      before[digit + 1] = before[digit];
      for (int64_t part = 0; part < parts; ++part) before[digit + 1] += counts[part][digit];
    }

    const auto digit_of = [&](int64_t i) {
      return std::upper_bound(before.begin(), before.end(), rank(i)) - before.begin() - 1;
    };
    std::vector<char> wanted(kDigits);
    for (int64_t i = 0; i < rank_count; ++i) wanted[digit_of(i)] = 1;
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
      for_part(part, [&](Word word) {
        const auto digit = word >> kShift;
        if (wanted[digit]) items[counts[part][digit]++] = word;
      });
    });
    for (int64_t i = 0; i < rank_count; ++i) {
      const int64_t digit = digit_of(i);
      const auto first = items.begin() + begins[digit];
      const auto found = first + (rank(i) - before[digit]);
      std::nth_element(first, found, first + (before[digit + 1] - before[digit]));
      put(i, key_of_rank(order_, *found));
    }
  }

 private:
  // No item after a selected one is smaller, so items are selected in ascending order of ranks, each from those after.
  template <typename RankOf, typename Put>
  void select(int64_t rank_count, RankOf rank, Put put) const {
    ThreadScratch<std::pair<int64_t, int64_t>, Word> scratch(rank_count, size_);
    std::pair<int64_t, int64_t>* const sought = scratch.first();
    Word* const words = scratch.second();
    for (int64_t i = 0; i < rank_count; ++i) sought[i] = {rank(i), i};
    std::sort(sought, sought + rank_count);
    for (int64_t i = 0; i < size_; ++i) words[i] = order_.rank(order_.encode(keys_[i]));
    int64_t selected = 0;
    for (int64_t i = 0; i < rank_count; ++i) {
      const auto [place, number] = sought[i];
      if (place >= selected) {
        select_from(words + selected, words + place, words + size_);
        selected = place + 1;
      }
      put(number, key_of_rank(order_, words[place]));
    }
  }

  // Puts the item at `place` that a sort would put there. No greater item stays before it, no smaller one after it.
  static void select_from(Word* begin, Word* place, Word* end) {
    if (place == begin) {
      std::iter_swap(std::min_element(begin, end), place);
    } else if (place + 1 == end) {
      std::iter_swap(std::max_element(begin, end), place);
    } else {
      std::nth_element(begin, place, end);
    }
  }

  template <typename Visit>
  void for_part(int64_t part, Visit visit) const {
    const int64_t end = std::min(size_, (part + 1) * kOrderStatisticsPart);
    for (int64_t i = part * kOrderStatisticsPart; i < end; ++i) visit(order_.rank(order_.encode(keys_[i])));
  }

  Order order_;
  const Word* keys_;
  int64_t size_;
};

}  // namespace mgpu::cpu
