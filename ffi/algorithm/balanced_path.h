// Balanced path: Baxter, "Set Operations" in Modern GPU (2013). Merge path lists all copies of a key in A before those
// in B. Here the r-th copy in A is followed by the r-th in B, and a split never separates these two.
#pragma once

#include "algorithm/merge_path.h"

namespace mgpu {

template <typename Index>
struct Split {
  Index a;
  Index b;
};

// The split of the balanced path after `diagonal` items, or after one more to keep a pair together (Baxter's starred
// diagonals). Merge path's split of this diagonal has `a_merged` items of A. `duplicates` says whether a key can occur
// twice in A or in B. `find(begin, end, before)` is a partition_point. The split lies inside A and B even if the keys
// are not sorted.
template <typename Index, typename KeysA, typename KeysB, typename Less, typename Find>
MGPU_HOST_DEVICE Split<Index> balanced_from_merged(Index b_count, Index a_merged, Index diagonal, KeysA a, KeysB b,
                                                   Less less, bool duplicates, Find find) {
  const Index b_merged = diagonal - a_merged;
  // Merge path may just have taken copies in A of the next key of B; only then do the splits differ.
  if (a_merged == 0 || b_merged == b_count) return {a_merged, b_merged};
  const auto key = b(b_merged);
  if (less(a(a_merged - 1), key)) return {a_merged, b_merged};
  if (!duplicates) return {a_merged, b_merged + 1};

  const Index a_first =
      partition_point_near_end(Index{0}, a_merged - 1, [&](Index i) { return less(a(i), key); }, find);
  const Index b_first = partition_point_near_end(Index{0}, b_merged, [&](Index i) { return less(b(i), key); }, find);
  const Index copies = diagonal - a_first - b_first;
  // B's share is half of the copies, less if B has fewer copies, and more if A has fewer.
  const Index b_wanted = maximum(copies / 2, b_merged - b_first);
  const Index b_end =
      find(b_merged, minimum(b_count, b_first + b_wanted + 1), [&](Index i) { return !less(key, b(i)); });
  const Index b_copies = minimum(b_wanted, b_end - b_first);
  const Index a_copies = copies - b_copies;
  const bool starred = a_copies == b_copies + 1 && b_first + b_copies < b_end;
  return {a_first + a_copies, b_first + b_copies + starred};
}

template <typename Index, typename KeysA, typename KeysB, typename Less, typename Find>
MGPU_HOST_DEVICE Split<Index> balanced_path(Index a_count, Index b_count, Index diagonal, KeysA a, KeysB b, Less less,
                                            bool duplicates, Find find) {
  const Index a_merged =
      merge_path_between(maximum(Index{0}, diagonal - b_count), minimum(diagonal, a_count), diagonal, a, b, less, find);
  return balanced_from_merged(b_count, a_merged, diagonal, a, b, less, duplicates, find);
}

// `end` is the split that a search found. The part has at most `max_items` items even if keys are not sorted and splits
// contradict each other.
template <typename Index>
MGPU_HOST_DEVICE Split<Index> part_end(Split<Index> begin, Split<Index> end, Index max_items) {
  const Index a_count = clamp(end.a - begin.a, Index{0}, max_items);
  return {begin.a + a_count, begin.b + clamp(end.b - begin.b, Index{0}, max_items - a_count)};
}

}  // namespace mgpu
