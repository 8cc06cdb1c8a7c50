// Merge path: Odeh, Green, Mwassi, Shmueli, Birk, "Merge Path - Parallel Merging Made Simple" (2012).
#pragma once

#include "algorithm/partition_point.h"

namespace mgpu {

// The number of items of A among the first `diagonal` items of the stable merge of A and B (A before B among
// equals), known to lie in [begin, end]. `a(i)` and `b(i)` give the keys; `find(begin, end, before)` is a
// partition_point, serial or of a warp.
template <typename Index, typename KeysA, typename KeysB, typename Less, typename Find>
MGPU_HOST_DEVICE Index merge_path_between(Index begin, Index end, Index diagonal, KeysA a, KeysB b, Less less,
                                          Find find) {
  return find(begin, end, [&](Index i) { return !less(b(diagonal - 1 - i), a(i)); });
}

// The same where nothing is known, by one thread.
template <typename Index, typename KeysA, typename KeysB, typename Less>
MGPU_HOST_DEVICE Index merge_path(Index a_count, Index b_count, Index diagonal, KeysA a, KeysB b, Less less) {
  return merge_path_between(maximum(Index{0}, diagonal - b_count), minimum(diagonal, a_count), diagonal, a, b, less,
                            [](Index begin, Index end, auto before) { return partition_point(begin, end, before); });
}

}  // namespace mgpu
