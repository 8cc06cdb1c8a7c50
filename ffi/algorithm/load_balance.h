// Load-balancing search: objects own runs of outputs, and each output looks up its object (Baxter, moderngpu, 2013).
#pragma once

#include "algorithm/common.h"
#include "algorithm/index_vector.h"
#include "algorithm/partition_point.h"
#include "algorithm/segments.h"

namespace mgpu {

// The objects of one problem. Object j owns outputs from start(j) on, up to the next object's start.
// WorkList explains `drift`. `live` is the number of live items or, without drift, of live outputs.
template <typename Offsets, typename Index>
struct WorkRowOf {
  static constexpr Index kLast = static_cast<Index>(~uint64_t{0} >> (65 - 8 * sizeof(Index)));
  Offsets offsets;
  Index objects;
  Index drift;
  Index live;
  Index first = 0;  // objects before this one have a negative offset and own nothing
  Index total = 0;

  MGPU_HOST_DEVICE Index start(Index j) const { return offsets[j] + drift * (j - first); }

  MGPU_HOST_DEVICE bool starts_before(Index j, Index position) const {
    const Index offset = offsets[j];
    return offset < live + (drift > 0) && offset + drift * (j - first) < position;
  }

  // The first object that does not start before `position`. `find(begin, end, before)` is a partition_point.
  template <typename Find>
  MGPU_HOST_DEVICE Index first_from(Index position, Find find) const {
    return find(first, objects, [&](Index j) { return starts_before(j, position); });
  }

  template <typename Find>
  MGPU_HOST_DEVICE Index find_first(Find find) const {
    const Index end = objects == 0 || offsets[0] >= 0 ? 0 : objects;
    return find(Index{0}, end, [&](Index j) { return offsets[j] < 0; });
  }

  // `first` must be known.
  template <typename Find>
  MGPU_HOST_DEVICE Index find_total(Index size, Find find) const {
    if (drift == 0) return objects == 0 ? 0 : minimum(live, size);
    const Index in_range = first_from(kLast, find) - first;
    return clamp<Index>(live + drift * in_range, 0, size);
  }
};
using WorkRow = WorkRowOf<IndexVector, int64_t>;

// The objects of all problems of a batch. With drift 0, `offsets` are the starts themselves. With drift 1, they are
// positions at which single items are inserted, and object j starts j outputs after its offset. With drift -1, they are
// positions of removed items; object j owns the items that follow the j-th of them, and starts j outputs before its
// offset. Invalid offsets never give an output outside `size` or an object outside `objects`.
struct WorkList {
  int64_t problems = 1;
  int64_t size = 0;  // the outputs of a problem, live or not
  int64_t objects = 0;
  int64_t capacity = 0;  // the number of live items if no count is given, and the most that a count can give
  int64_t drift = 0;

  IndexVector offsets;  // [problems or 1, objects]
  int64_t offsets_stride = 0;
  LiveCounts counts;

  // Only for a single problem: if *is_replaced, which an earlier kernel may set, other_offsets and other_count replace
  // the offsets and the count.
  const int32_t* is_replaced = nullptr;
  IndexVector other_offsets;
  const int64_t* other_count = nullptr;

  MGPU_HOST_DEVICE bool replaced() const { return is_replaced && *is_replaced != 0; }

  MGPU_HOST_DEVICE IndexVector offsets_of(int64_t problem) const {
    return replaced() ? other_offsets : offsets.from(problem * offsets_stride);
  }

  MGPU_HOST_DEVICE int64_t live(int64_t problem) const {
    return replaced() ? clamp<int64_t>(*other_count, 0, capacity) : counts(problem, capacity);
  }

  // `first` and `total` are not found yet.
  MGPU_HOST_DEVICE WorkRow row(int64_t problem) const { return {offsets_of(problem), objects, drift, live(problem)}; }
};

// Calls visit(object, outputs) for each run of one object among `outputs`, in order. Outputs before the start of object
// `first` belong to no object; for these, visit gets `first - 1`.
template <typename Visit>
inline void for_each_run(const WorkRow& row, Range<int64_t> outputs, Visit visit) {
  int64_t next = row.first_from(outputs.begin + 1, [](auto... search) { return partition_point(search...); });
  for (int64_t position = outputs.begin; position < outputs.end; ++next) {
    const bool ends_within = next < row.objects && row.starts_before(next, outputs.end);
    const int64_t end = ends_within ? maximum(row.start(next), position + 1) : outputs.end;
    visit(next - 1, Range<int64_t>{position, end});
    position = end;
    // A search skips objects that own nothing.
    const auto makes_nothing = [&](int64_t j) { return row.starts_before(j + 1, position + 1); };
    if (next + 1 < row.objects && makes_nothing(next)) {
      next = galloping_partition_point(next + 1, row.objects - 1, makes_nothing);
    }
  }
}

// Per problem, `cells` holds the first object that starts at or after the beginning of each tile, and at or after the
// end of the last one, then `first` and `total` of the WorkRow.
struct WorkTiles {
  int64_t tile;
  int64_t tiles;
  int64_t* cells = nullptr;

  MGPU_HOST_DEVICE int64_t stride() const { return tiles + 3; }
};

}  // namespace mgpu
