#pragma once

#include <algorithm>
#include <vector>

#include "algorithm/segments.h"
#include "runtime/executor.h"

namespace mgpu::cpu {

struct RowRange {
  int64_t row;
  int64_t number;  // the number of the segment in its row
  Range<int64_t> range;
};

// The segments of all rows. If segments overlap, they are cut, so that a row's segments together have no more items
// than the row.
inline std::vector<Range<int64_t>> bounded_segments(const SegmentBounds& bounds) {
  std::vector<Range<int64_t>> segments;
  segments.reserve(bounds.rows * bounds.segments);
  for (int64_t row = 0; row < bounds.rows; ++row) {
    int64_t left = bounds.length;  // the items that further segments may have
    for (int64_t i = 0; i < bounds.segments; ++i) {
      const Range<int64_t> given = bounds.segment(row, i);
      segments.push_back({given.begin, given.begin + minimum(given.size(), left)});
      left -= segments.back().size();
    }
  }
  return segments;
}

// Calls visit_short(segment) for each segment of at most `part` items, in tasks of one segment or several. Then calls
// visit_long(segment), which may use all threads, for one longer segment after the other. There must be a segment.
template <typename Short, typename Long>
void for_each_segment(Executor& executor, const SegmentBounds& bounds, int64_t part, Short visit_short,
                      Long visit_long) {
  const std::vector<Range<int64_t>> ranges = bounded_segments(bounds);
  const auto segment = [&](int64_t i) {
    const int64_t row = i / bounds.segments;
    return RowRange{row, i - row * bounds.segments, ranges[i]};
  };
  const auto all = static_cast<int64_t>(ranges.size());
  const int64_t mean = bounds.length / bounds.segments;
  const int64_t group = std::max<int64_t>(1, part / 4 / (mean + 16));
  parallel_for(executor, ceil_div(all, group), [&](int64_t task) {
    for (int64_t i = task * group; i < std::min(all, (task + 1) * group); ++i) {
      if (ranges[i].size() <= part) visit_short(segment(i));
    }
  });
  for (int64_t i = 0; i < all; ++i) {
    if (ranges[i].size() > part) visit_long(segment(i));
  }
}

}  // namespace mgpu::cpu
