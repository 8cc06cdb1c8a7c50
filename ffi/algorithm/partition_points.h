#pragma once

#include "algorithm/segments.h"

namespace mgpu {

// Several searches in lockstep, so that their reads overlap.
// A finished search reads position 0.
// `before(k, item)` says whether search k continues after the item that read(k, i) gave.
template <int kCount, typename Index, typename Read, typename Before>
MGPU_HOST_DEVICE void partition_points(Range<Index> (&searches)[kCount], Read read, Before before) {
  Index longest = 0;
  MGPU_UNROLL
  for (int k = 0; k < kCount; ++k) longest = maximum(longest, searches[k].size());
  MGPU_NO_UNROLL
  for (; longest > 0; longest /= 2) {
    Index middles[kCount];
    decltype(read(0, Index{})) items[kCount];
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const auto [begin, end] = searches[k];
      middles[k] = begin + (end - begin) / 2;
      items[k] = read(k, begin < end ? middles[k] : Index{0});
    }
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const auto [begin, end] = searches[k];  // a finished search, with begin == end, stays as it is
      const bool is_before = before(k, items[k]);
      searches[k] = {is_before ? minimum<Index>(middles[k], end - 1) + 1 : begin, is_before ? end : middles[k]};
    }
  }
}

// A partition_point with kProbes probes per step.
template <int kProbes, typename Index, typename Read, typename Before>
MGPU_HOST_DEVICE Index wide_partition_point(Index begin, Index end, Read read, Before before) {
  while (begin < end) {
    const auto probe = [begin, size = end - begin](int k) { return begin + size * (k + 1) / (kProbes + 1); };
    decltype(read(begin)) items[kProbes];
    MGPU_UNROLL
    for (int k = 0; k < kProbes; ++k) items[k] = read(probe(k));
    int count = 0;
    MGPU_UNROLL
    for (int k = 0; k < kProbes; ++k) count += before(items[k]);
    if (count < kProbes) end = probe(count);
    if (count > 0) begin = probe(count - 1) + 1;
  }
  return begin;
}

}  // namespace mgpu
