#pragma once

#include "algorithm/segments.h"

namespace mgpu {

constexpr int kIntervalGroupBits = 4;
constexpr int kIntervalGroup = 1 << kIntervalGroupBits;  // items of a group, or groups of a larger group

// A run ends where a group begins (kBefore), begins where one ends (kAfter), or lies anywhere and is at most as long as
// a group (kWithin).
enum class GroupRun { kBefore, kAfter, kWithin };

// Cuts an interval into O(log n) runs, and calls add(level, run, kind) for each. At each level but the last, one run
// comes before the interval's whole groups, one after them, and these groups make the interval of the next level.
// If kLevels is not 0, it is an upper bound of the number of levels.
template <int kLevels = 0, typename Index, typename Add>
MGPU_HOST_DEVICE void cut_into_groups(Range<Index> interval, Add add) {
  [[maybe_unused]] constexpr int kUnroll = kLevels > 0 ? 4 : 1;
#ifdef __CUDACC__
#pragma unroll kUnroll
#endif
  for (int level = 0; kLevels == 0 || level < kLevels; ++level) {
    const bool is_last = interval.size() <= kIntervalGroup;
    const Range<Index> groups{(interval.begin + (kIntervalGroup - 1)) >> kIntervalGroupBits,
                              interval.end >> kIntervalGroupBits};
#ifdef __CUDACC__
#pragma unroll kUnroll
#endif
    for (int side = 0; side < 2; ++side) {
      if (side == 1 && is_last) return;
      const Range<Index> before{interval.begin, is_last ? interval.end : groups.begin << kIntervalGroupBits};
      const Range<Index> after{groups.end << kIntervalGroupBits, interval.end};
      const GroupRun kind = side == 1 ? GroupRun::kAfter : is_last ? GroupRun::kWithin : GroupRun::kBefore;
      add(level, side == 1 ? after : before, kind);
    }
    interval = groups;
  }
}

}  // namespace mgpu
