// Merge path splits a merge of two sorted arrays into parts that can be merged independently: Odeh, Green, Mwassi,
// Shmueli, Birk, "Merge Path - Parallel Merging Made Simple" (2012).
#pragma once

#include "algorithm/partition_point.h"

namespace mgpu {

// The number of items of A among the first `diagonal` items of the stable merge of A and B (A before B among equals),
// known to lie in [begin, end]. `find(begin, end, before)` is a partition_point.
template <typename Index, typename KeysA, typename KeysB, typename Less, typename Find>
MGPU_HOST_DEVICE Index merge_path_between(Index begin, Index end, Index diagonal, KeysA a, KeysB b, Less less,
                                          Find find) {
  return find(begin, end, [&](Index i) { return !less(b(diagonal - 1 - i), a(i)); });
}

template <typename Index, typename KeysA, typename KeysB, typename Less>
MGPU_HOST_DEVICE Index merge_path(Index a_count, Index b_count, Index diagonal, KeysA a, KeysB b, Less less) {
  return merge_path_between(maximum(Index{0}, diagonal - b_count), minimum(diagonal, a_count), diagonal, a, b, less,
                            [](Index begin, Index end, auto before) { return partition_point(begin, end, before); });
}

// Like merge_path_between, for keys that are unsigned codes, but by the secant method: `guess` is the first probe, and
// `rise` estimates how much a(i) - b(diagonal - 1 - i) grows with i.
// A probe overshoots a little, so that the next one may come from the other side.
// `find` finishes the search.
template <typename Index, typename KeysA, typename KeysB, typename Less, typename Find>
MGPU_HOST_DEVICE Index merge_path_by_secants(Index begin, Index end, Index diagonal, Index guess, float rise, KeysA a,
                                             KeysB b, Less less, Find find) {
  constexpr int kGuesses = 8;
  constexpr Index kMaxRemaining = 8;
  constexpr float kMinRise = 1e-6f, kFarthest = 1 << 30;
  Index last_probe = 0;
  float last_gap = 0;
  for (int guesses = 0; end - begin > kMaxRemaining && guesses < kGuesses; ++guesses) {
    const Index probe = clamp(guess, begin, end - 1);
    const auto a_key = a(probe);
    const auto b_key = b(diagonal - 1 - probe);
    using Key = std::remove_const_t<decltype(a_key)>;
    const bool before = !less(b_key, a_key);
    const float gap = before ? -static_cast<float>(static_cast<Key>(b_key - a_key))
                             : static_cast<float>(static_cast<Key>(a_key - b_key));
    const float secant = (gap - last_gap) / static_cast<float>(probe - last_probe);
    if (guesses > 0 && secant > 0) rise = secant;
    const float distance = minimum(fabsf(gap) / maximum(rise, kMinRise), kFarthest);
    const Index step = 1 + static_cast<Index>(distance + sqrtf(distance));
    last_probe = probe;
    last_gap = gap;
    if (before) {
      begin = probe + 1;
      guess = probe + step;
    } else {
      end = probe;
      guess = probe - step;
    }
    if (gap == 0) break;  // the answer is at the end of equal keys
  }
  return merge_path_between(begin, end, diagonal, a, b, less, find);
}

}  // namespace mgpu
