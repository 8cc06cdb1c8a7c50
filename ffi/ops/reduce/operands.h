#pragma once

#include "algorithm/merge_path.h"
#include "ops/common/operators.h"

namespace mgpu {

class Arguments;
struct SegmentTiling;

// Operands: x [.., n]; count [.., 1], the number of live items, or absent. Attributes: op, and wide, whether sums and
// products have the result's type. Result: [..], one item per row.
struct ReduceOperands : OperatorOperands {
  void* result;
  bool wide_result;

  explicit ReduceOperands(const Call& call);
  ReduceOperands(const Call& call, const Arguments& in);

  // These are for CUDA (plan.h). Scratch memory holds one state per chunk, unless rows are short.
  int64_t chunk_items() const;
  int64_t chunks() const { return ceil_div(segments.length, chunk_items()); }
  bool has_short_rows() const;
  char* layout(Workspace& workspace, int64_t state_bytes) const;
};

// The ends of all segments, as one non-decreasing sequence over all rows:
// in each row the heads, then the end of the live items, then the end of
// the row. An end closes the segment, the gap or the dead items before it.
struct SegmentEnds {
  Segments segments;

  MGPU_HOST_DEVICE int64_t per_row() const { return segments.heads_count + 2; }
  MGPU_HOST_DEVICE int64_t count() const { return segments.rows * per_row(); }
  MGPU_HOST_DEVICE int64_t row(int64_t j) const { return segments.rows == 1 ? 0 : j / per_row(); }

  MGPU_HOST_DEVICE int64_t operator[](int64_t j) const {
    if (segments.rows == 1 && j < segments.heads_count) return minimum(segments.row_head(0, j), segments.live(0));
    const int64_t row = this->row(j);
    const int64_t i = j - row * per_row();
    if (i > segments.heads_count) return (row + 1) * segments.length;
    const int64_t live = segments.live(row);
    return row * segments.length + (i == segments.heads_count ? live : minimum(segments.row_head(row, i), live));
  }

  // Returns -1 if end j closes no result.
  MGPU_HOST_DEVICE int64_t entry(int64_t j) const {
    const int64_t row = this->row(j);
    const int64_t i = j - row * per_row();
    return i == 0 || i > segments.heads_count ? -1 : row * segments.heads_count + i - 1;
  }

  // A tile's units are items and ends in one order: an end comes after the items before it, so end j is unit (*this)[j]
  // + j. items_before returns the number of items among the first `diagonal` units.
  MGPU_HOST_DEVICE int64_t units() const { return segments.total() + count(); }
  template <typename Find>
  MGPU_HOST_DEVICE int64_t items_before(int64_t diagonal, Find find) const {
    return diagonal - find(maximum<int64_t>(0, diagonal - segments.total()), minimum(diagonal, count()),
                           [&](int64_t j) { return (*this)[j] + j < diagonal; });
  }
};

// Operands: x [.., n]; heads [.., m], where segments begin; count [.., 1] or absent. Attributes: op, wide. Result: [..,
// m].
struct SegmentedReduceOperands : OperatorOperands {
  void* result;
  bool wide_result;

  explicit SegmentedReduceOperands(const Call& call);
  SegmentedReduceOperands(const Call& call, const Arguments& in);

  SegmentEnds ends() const { return {segments}; }
  SegmentTiling tiling(int64_t state_bytes) const;
};

}  // namespace mgpu
