#include "ops/common/read.h"

namespace mgpu {

SegmentBounds read_segment_bounds(const Call& call, const Arguments& in, int64_t rows, int64_t length) {
  SegmentBounds bounds{};
  bounds.rows = rows;
  bounds.length = length;
  bounds.segments = Call::length(in["begins"]);
  const auto read = [&](const char* name, int64_t& stride) {
    stride = call.row_stride(in[name], bounds.segments, rows, name);
    return call.index_vector(in[name], name);
  };
  bounds.begins = read("begins", bounds.begins_stride);
  bounds.ends = read("ends", bounds.ends_stride);
  bounds.counts = call.live_counts(in["count"], rows);
  return bounds;
}

std::vector<Range<int64_t>> bounded_segments(const SegmentBounds& bounds) {
  std::vector<Range<int64_t>> segments;
  segments.reserve(bounds.rows * bounds.segments);
  for (int64_t row = 0; row < bounds.rows; ++row) {
    int64_t left = bounds.length;  // items that no segment has yet, if none has an item of another
    for (int64_t i = 0; i < bounds.segments; ++i) {
      const Range<int64_t> given = bounds.segment(row, i);
      segments.push_back({given.begin, given.begin + minimum(given.size(), left)});
      left -= segments.back().size();
    }
  }
  return segments;
}

}  // namespace mgpu
