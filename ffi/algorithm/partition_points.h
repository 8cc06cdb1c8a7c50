// Searches whose reads are on their way side by side: several in step, or one with several probes a step.
#pragma once

#include "algorithm/segments.h"

namespace mgpu {

// As partition_point, of several searches side by side, so that as many reads are on their way at once. A search whose
// range is found reads position 0 until the others are done: no branch keeps the reads apart. `read(k, i)` gives the
// item of search k at a position, and `before(k, item)` says whether the search goes on behind it. `hold(items)` keeps
// a compiler from putting off each read until its item is needed.
template <int kCount, typename Index, typename Read, typename Before, typename Hold>
MGPU_HOST_DEVICE void partition_points(Range<Index> (&searches)[kCount], Read read, Before before, Hold hold) {
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
    hold(items);
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const auto [begin, end] = searches[k];  // where they are one, both stay
      const bool is_before = before(k, items[k]);
      searches[k] = {is_before ? minimum<Index>(middles[k], end - 1) + 1 : begin, is_before ? end : middles[k]};
    }
  }
}

// As partition_point, with kProbes probes a step: as many steps fewer as a step finds more bits, where what a search
// waits for is one read after the other. `read(i)` gives an item, and `before(item)` is true, then false.
template <int kProbes, typename Index, typename Read, typename Before>
MGPU_HOST_DEVICE Index wide_partition_point(Index begin, Index end, Read read, Before before) {
  while (begin < end) {
    const auto probe = [begin, size = end - begin](int k) { return begin + size * (k + 1) / (kProbes + 1); };
    decltype(read(begin)) items[kProbes];
    MGPU_UNROLL
    for (int k = 0; k < kProbes; ++k) items[k] = read(probe(k));
    int count = 0;  // of probes that are before
    MGPU_UNROLL
    for (int k = 0; k < kProbes; ++k) count += before(items[k]);
    if (count < kProbes) end = probe(count);
    if (count > 0) begin = probe(count - 1) + 1;
  }
  return begin;
}

}  // namespace mgpu
