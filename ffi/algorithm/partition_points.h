// Several binary searches in step.
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

}  // namespace mgpu
