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

}  // namespace mgpu
