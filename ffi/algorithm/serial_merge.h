#pragma once

#include "algorithm/merge_path.h"

namespace mgpu {

// Hides from the compiler where `taken`, 0 or 1, comes from, so that it makes no branch on it.
// NVRTC compiles this as a device function, whose registers have other names.
inline int64_t opaque(int64_t taken) {
#ifndef __CUDACC_RTC__
  asm("" : "+r"(taken));
#endif
  return taken;
}

struct MergeWalk {
  int64_t i, i_end;
  int64_t j, j_end;

  bool open() const { return i < i_end && j < j_end; }

  // Calls step(i, j, take_b), where i items of A and j of B come before the next item, and take_b (0 or 1) says whether
  // that item is B's.
  template <typename KeysA, typename KeysB, typename Less, typename Step>
  [[gnu::always_inline]] void advance(KeysA a, KeysB b, Less less, Step step) {
    const int64_t take_b = opaque(less(b(j), a(i)));
    step(i, j, take_b);
    j += take_b;
    i += 1 - take_b;
  }

  template <typename RestA, typename RestB>
  void finish(RestA rest_a, RestB rest_b) const {
    if (i < i_end) rest_a(i, i_end, j);
    if (j < j_end) rest_b(j, j_end, i);
  }
};

template <typename Word>
inline Word select(int64_t take, Word x, Word y) {
  return static_cast<Word>(x ^ ((x ^ y) & static_cast<Word>(-take)));
}

template <typename Item>
inline const Item* select(int64_t take, const Item* x, const Item* y) {
  return reinterpret_cast<const Item*>(select(take, reinterpret_cast<uintptr_t>(x), reinterpret_cast<uintptr_t>(y)));
}

// Walks two halves of the merge of A and B in lockstep, A first among equals. While both sides of a half have items, it
// calls step(i, j, take_b) for each item, in merged order.
// For what one side of a half has left, it calls rest_a(i, end, j) or rest_b(j, end, i).
template <typename KeysA, typename KeysB, typename Less, typename Step, typename RestA, typename RestB>
inline void walk_merge(int64_t a_count, int64_t b_count, KeysA a, KeysB b, Less less, Step step, RestA rest_a,
                       RestB rest_b) {
  const int64_t middle = (a_count + b_count) / 2;
  const int64_t split = merge_path(a_count, b_count, middle, a, b, less);
  MergeWalk first{0, split, 0, middle - split};
  MergeWalk second{split, a_count, middle - split, b_count};
  while (first.open() && second.open()) {
    first.advance(a, b, less, step);
    second.advance(a, b, less, step);
  }
  for (MergeWalk* walk : {&first, &second}) {
    while (walk->open()) walk->advance(a, b, less, step);
    walk->finish(rest_a, rest_b);
  }
}

// A comes before B among equals.
template <typename Item, typename Less>
inline void serial_merge(const Item* a, const Item* a_end, const Item* b, const Item* b_end, Item* out, Less less) {
  while (a < a_end && b < b_end) {
    const bool take_b = less(*b, *a);
    *out++ = take_b ? *b : *a;
    b += take_b;
    a += !take_b;
  }
  while (a < a_end) *out++ = *a++;
  while (b < b_end) *out++ = *b++;
}

// The first round starts with items 0 and 1.
template <int kRounds, int kItems, typename Item, typename Less, typename IsHead>
MGPU_HOST_DEVICE void odd_even_rounds(Item (&items)[kItems], Less less, IsHead is_head) {
  MGPU_UNROLL
  for (int round = 0; round < kRounds; ++round) {
    MGPU_UNROLL
    for (int i = round & 1; i + 1 < kItems; i += 2) {
      const bool swap = !is_head(i + 1) && less(items[i + 1], items[i]);
      const Item first = swap ? items[i + 1] : items[i];
      items[i + 1] = swap ? items[i] : items[i + 1];
      items[i] = first;
    }
  }
}

// Sorts a few items stably by odd-even transposition, which swaps only neighbours, so no item crosses a segment's head.
// Without kWrittenOut, two rounds are one step of a loop.
template <bool kWrittenOut = true, int kItems, typename Item, typename Less, typename IsHead>
MGPU_HOST_DEVICE void odd_even_sort(Item (&items)[kItems], Less less, IsHead is_head) {
  if constexpr (kWrittenOut) {
    odd_even_rounds<kItems>(items, less, is_head);
  } else {
    MGPU_NO_UNROLL
    for (int round = 0; round + 1 < kItems; round += 2) odd_even_rounds<2>(items, less, is_head);
    if constexpr (kItems % 2 == 1) odd_even_rounds<1>(items, less, is_head);
  }
}

namespace network {

template <typename Word>
MGPU_HOST_DEVICE void exchange(Word& a, Word& b) {
  if constexpr (sizeof(Word) >= 8) {  // compares once
    const bool swap = b < a;
    const Word low = swap ? b : a;
    b = swap ? a : b;
    a = low;
  } else {
    const Word low = minimum(a, b);
    b = maximum(a, b);
    a = low;
  }
}

// Every index is a constant, as registers need.
template <int p, int k, typename Word, int... i>
MGPU_HOST_DEVICE void step(Word* items, std::integer_sequence<int, i...>) {
  ((i >= k % p && (i - k % p) / k % 2 == 0 && i / (2 * p) == (i + k) / (2 * p) ? exchange(items[i], items[i + k])
                                                                               : void()),
   ...);
}

template <int kItems, int p, int k, typename Word>
MGPU_HOST_DEVICE void steps(Word* items) {
  step<p, k>(items, std::make_integer_sequence<int, kItems - k>());
  if constexpr (k > 1) {
    steps<kItems, p, k / 2>(items);
  } else if constexpr (2 * p < kItems) {
    steps<kItems, 2 * p, 2 * p>(items);
  }
}

}  // namespace network

// The odd-even merge sort of Batcher, "Sorting networks and their applications" (1968). It is not stable, so it serves
// only keys without payload whose order is total.
template <int kItems, typename Word>
MGPU_HOST_DEVICE void network_sort(Word (&items)[kItems]) {
  network::steps<kItems, 1, 1>(items);
}

}  // namespace mgpu
