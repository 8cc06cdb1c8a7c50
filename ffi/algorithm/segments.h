#pragma once

#include "algorithm/common.h"
#include "algorithm/index_vector.h"
#include "algorithm/partition_point.h"

namespace mgpu {

template <typename Index>
struct Range {
  Index begin;
  Index end;
  MGPU_HOST_DEVICE Index size() const { return end - begin; }
};

// Only the live items of a row belong to segments.
struct SegmentBounds {
  int64_t rows;
  int64_t length;
  int64_t segments;
  IndexVector begins, ends;
  int64_t begins_stride, ends_stride;  // from row to row
  LiveCounts counts;

  MGPU_HOST_DEVICE Range<int64_t> segment(int64_t row, int64_t i) const {
    const int64_t live = counts(row, length);
    const int64_t begin = clamp<int64_t>(begins[row * begins_stride + i], 0, live);
    return {begin, clamp<int64_t>(ends[row * ends_stride + i], begin, live)};
  }
};

// The segments of `rows` rows of `length` items, flattened: a row's first position starts a segment.
// An item past a row's live count is its own segment. Invalid heads give no range outside the row.
struct Segments {
  int64_t rows = 1;
  int64_t length = 0;

  IndexVector heads;  // [rows or 1, heads_count]
  int64_t heads_count = 0;
  int64_t heads_stride = 0;  // from row to row: heads_count, or 0 if all rows share the heads

  // A caller may give flags instead of heads, a byte or a bit for each item.
  const uint8_t* flag_bytes = nullptr;   // [rows or 1, length]
  const uint32_t* flag_words = nullptr;  // [rows or 1, ceil(length / 32)]
  int64_t flags_stride = 0;

  LiveCounts counts;

  MGPU_HOST_DEVICE int64_t total() const { return rows * length; }
  MGPU_HOST_DEVICE bool has_flags() const { return flag_bytes || flag_words; }
  MGPU_HOST_DEVICE int64_t row(int64_t position) const { return rows == 1 ? 0 : position / length; }

  MGPU_HOST_DEVICE int64_t live(int64_t row) const { return counts(row, length); }

  MGPU_HOST_DEVICE int64_t row_head(int64_t row, int64_t i) const {
    return clamp<int64_t>(heads[row * heads_stride + i], 0, length);
  }

  // Each row's start, then its listed heads, over all rows.
  MGPU_HOST_DEVICE int64_t flat_heads_count() const { return rows * (heads_count + 1); }
  MGPU_HOST_DEVICE int64_t flat_head(int64_t j) const {
    const int64_t row = rows == 1 ? 0 : j / (heads_count + 1);
    const int64_t i = j - row * (heads_count + 1);
    return row * length + (i == 0 ? 0 : row_head(row, i - 1));
  }

  // The least j, from the start of the position's row on, with flat_head(j) >= position; else flat_heads_count().
  template <typename Find>
  MGPU_HOST_DEVICE int64_t listed_from(int64_t position, Find find) const {
    if (position >= total()) return flat_heads_count();
    const int64_t row = this->row(position);
    const int64_t offset = position - row * length;
    if (offset == 0) return row * (heads_count + 1);
    const int64_t i = find(int64_t{0}, heads_count, [&](int64_t i) { return row_head(row, i) < offset; });
    return row * (heads_count + 1) + 1 + i;
  }

  // The segments must be given by heads.
  template <typename Find>
  MGPU_HOST_DEVICE Range<int64_t> segment_of(int64_t position, Find find) const {
    const int64_t row = this->row(position);
    const int64_t row_begin = row * length;
    const int64_t offset = position - row_begin;
    const int64_t live = this->live(row);
    if (offset >= live) return {position, position + 1};
    const int64_t next = find(int64_t{0}, heads_count, [&](int64_t i) { return row_head(row, i) <= offset; });
    const int64_t begin = next == 0 ? 0 : row_head(row, next - 1);
    const int64_t end = next == heads_count ? live : row_head(row, next);
    return {row_begin + minimum(begin, offset), row_begin + clamp(end, offset + 1, live)};
  }

  // Calls mark(position) for the positions of `tile` that start a segment; `lanes` lanes share the work.
  // `listed` is the range of the tile's heads, from listed_from.
  // If there are more than two heads per position, each position is searched for among the heads.
  template <typename Mark>
  MGPU_HOST_DEVICE void mark_heads(Range<int64_t> tile, Range<int64_t> listed, int lane, int lanes, Mark mark) const {
    if (has_flags() || counts.given()) {
      for (int64_t position = tile.begin + lane; position < tile.end; position += lanes) {
        const int64_t row = this->row(position);
        if (is_flagged(row, position - row * length)) mark(position);
      }
      if (has_flags()) return;
    }
    if (listed.size() <= 2 * tile.size()) {
      for (int64_t j = listed.begin + lane; j < listed.end; j += lanes) {
        const int64_t position = flat_head(j);
        if (position >= tile.begin && position < tile.end) mark(position);
      }
    } else {
      for (int64_t position = tile.begin + lane; position < tile.end; position += lanes) {
        const int64_t j = partition_point(listed.begin, listed.end, [&](int64_t j) { return flat_head(j) < position; });
        if (j < listed.end && flat_head(j) == position) mark(position);
      }
    }
  }

 private:
  MGPU_HOST_DEVICE bool is_flagged(int64_t row, int64_t offset) const {
    if (offset == 0 || offset >= live(row)) return true;
    if (flag_bytes) return flag_bytes[row * flags_stride + offset] != 0;
    if (flag_words) return (flag_words[row * flags_stride + offset / 32] >> (offset % 32)) & 1;
    return false;
  }
};

// Cells of `width` positions are sorted first, then round k merges runs of 2^k cells in pairs.
// Runs are counted from the segment's own first cell.
// So a segment over c cells needs ceil(log2(c)) rounds at any position.
template <typename Index>
MGPU_HOST_DEVICE int merge_rounds(Range<Index> segment, Index width) {
  return segment.size() <= 0 ? 0 : ceil_log2((segment.end - 1) / width - segment.begin / width + 1);
}

// Round k merges four runs of 4^k cells each.
template <typename Index>
MGPU_HOST_DEVICE int group_rounds(Range<Index> segment, Index width) {
  return (merge_rounds(segment, width) + 1) / 2;
}

// Run k is [bounds[k], bounds[k + 1]), and may be empty.
template <typename Index>
struct MergeGroup {
  Index bounds[5];
  MGPU_HOST_DEVICE Index begin() const { return bounds[0]; }
  MGPU_HOST_DEVICE Index end() const { return bounds[4]; }
  MGPU_HOST_DEVICE Index length(int run) const { return bounds[run + 1] - bounds[run]; }
};

template <typename Index>
MGPU_HOST_DEVICE MergeGroup<Index> merge_group(Range<Index> segment, Index first_cell, Index width, Index cell,
                                               int round) {
  const int shift = 2 * round;
  const Index group_cell = first_cell + (((cell - first_cell) >> (shift + 2)) << (shift + 2));
  MergeGroup<Index> group;
  MGPU_UNROLL
  for (Index k = 0; k < 5; ++k) {
    group.bounds[k] = clamp((group_cell + (k << shift)) * width, segment.begin, segment.end);
  }
  return group;
}

// The sorted runs [begin, middle) and [middle, end); the second may be empty.
template <typename Index>
struct MergePair {
  Index begin;
  Index middle;
  Index end;
};

template <typename Index>
MGPU_HOST_DEVICE MergePair<Index> merge_pair(Range<Index> segment, Index first_cell, Index width, Index cell,
                                             int round) {
  const Index pair_cell = first_cell + (((cell - first_cell) >> (round + 1)) << (round + 1));
  const Index run = Index{1} << round;
  return {maximum(segment.begin, pair_cell * width), minimum(segment.end, (pair_cell + run) * width),
          minimum(segment.end, (pair_cell + 2 * run) * width)};
}

template <typename Index>
MGPU_HOST_DEVICE MergePair<Index> merge_pair(Range<Index> segment, Index width, Index cell, int round) {
  return merge_pair(segment, segment.begin / width, width, cell, round);
}

}  // namespace mgpu
