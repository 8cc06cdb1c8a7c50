#pragma once

#include "algorithm/common.h"

namespace mgpu {

// The first i in [begin, end) for which `before(i)` is false, or end.
// If `before` is not monotone, the result still lies in [begin, end].
template <typename Index, typename Predicate>
MGPU_HOST_DEVICE Index partition_point(Index begin, Index end, Predicate before) {
  while (begin < end) {
    const Index middle = begin + (end - begin) / 2;
    if (before(middle)) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// A partition_point that is fast if the answer is near `begin`: a few single steps, then doubling strides.
template <typename Index, typename Predicate>
MGPU_HOST_DEVICE Index galloping_partition_point(Index begin, Index end, Predicate before) {
  Index stride = 1;
  for (int step = 0; stride <= end - begin; ++step) {
    if (!before(begin + stride - 1)) return partition_point(begin, begin + stride - 1, before);
    begin += stride;
    if (step >= 4) stride *= 2;
  }
  return partition_point(begin, end, before);
}

// A partition_point that is fast if the answer is near `end`: it looks back in steps that grow eightfold.
// `find(begin, end, before)` is a partition_point.
template <typename Index, typename Predicate, typename Find>
MGPU_HOST_DEVICE Index partition_point_near_end(Index begin, Index end, Predicate before, Find find) {
  for (Index step = 1; begin < end; step = minimum(8 * step, end - begin)) {
    const Index probe = end - minimum(step, end - begin);
    if (before(probe)) return find(probe + 1, end, before);
    end = probe;
  }
  return begin;
}

template <typename Index, typename Keys, typename Key, typename Less>
MGPU_HOST_DEVICE Index lower_bound(Index begin, Index end, Keys keys, const Key& key, Less less) {
  return partition_point(begin, end, [&](Index i) { return less(keys(i), key); });
}

template <typename Index, typename Keys, typename Key, typename Less>
MGPU_HOST_DEVICE Index upper_bound(Index begin, Index end, Keys keys, const Key& key, Less less) {
  return partition_point(begin, end, [&](Index i) { return !less(key, keys(i)); });
}

}  // namespace mgpu
