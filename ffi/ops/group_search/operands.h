// Each row of a has a cut, a position in b. The operation finds the nearest row of b before the cut, or from it on,
// that is of the same group as the row of a.
#pragma once

#include "algorithm/index_vector.h"
#include "algorithm/partition_point.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

// One problem in the order of a walk along both sides: from their first rows on or, if `forward`, from their last live
// rows down. So the sought row is always the last one before the cut. Positions i and j count along the walk: row i of
// a comes after the rows of b before its cut, at slot i + cut(i).
template <typename Index, bool kForward>
struct GroupWalk {
  static constexpr int kStep = kForward ? -1 : 1;  // from one row of the walk to the next

  const Index* cuts;
  const uint32_t* a_groups;
  const uint32_t* b_groups;
  uint32_t first_group;
  uint32_t groups;
  int64_t a_live;
  int64_t b_live;
  Index* positions;

  MGPU_HOST_DEVICE int64_t slots() const { return a_live + b_live; }
  MGPU_HOST_DEVICE int64_t a_row(int64_t i) const { return kForward ? a_live - 1 - i : i; }
  MGPU_HOST_DEVICE int64_t b_row(int64_t j) const { return kForward ? b_live - 1 - j : j; }
  // The distance along the walk from row `from` of b to a cut. Cuts that are not positions in b may give any number.
  MGPU_HOST_DEVICE Index along(Index cut, int64_t from = 0) const {
    using Word = std::make_unsigned_t<Index>;
    const Word word = kForward ? static_cast<Word>(b_live) - static_cast<Word>(cut) : static_cast<Word>(cut);
    return static_cast<Index>(word - static_cast<Word>(from));
  }
  MGPU_HOST_DEVICE Index cut(int64_t i) const {
    return along(clamp<Index>(cuts[a_row(i)], 0, static_cast<Index>(b_live)));
  }
  // A row of no group gets `groups` or more.
  MGPU_HOST_DEVICE uint32_t group(uint32_t word) const { return word - first_group; }

  // The number of rows of a among the first `slot` slots. `find(begin, end, before)` is a partition_point. If cuts are
  // not sorted, the number is arbitrary, but b has enough rows for the rest of these slots.
  template <typename Find>
  MGPU_HOST_DEVICE int64_t split(int64_t slot, Find find) const {
    return find(maximum<int64_t>(0, slot - b_live), minimum(slot, a_live),
                [&](int64_t i) { return i + cut(i) < slot; });
  }
};

constexpr int kGroupTable = 12288;

// Operands:
//   cuts [.., n]                           positions in b, from 0 to m, ascending
//   a_groups [.., n], b_groups [.., m]     int32, the group of each row
//   first_group [.., 1], int32, and group_count [.., 1], at most kGroupTable: rows of other groups have no partner
//   a_count [.., 1], b_count [.., 1]       the numbers of live rows, or absent
// Attribute: forward. Result: positions [.., n], of the type of the cuts. Each is the last row of b before the cut in
// the same group or, if `forward`, the first one from the cut on; -1 if there is none.
struct GroupSearchOperands {
  int64_t problems;
  bool forward;
  int64_t a_length;
  int64_t b_length;
  IndexVector cuts;
  int64_t cuts_stride;  // from problem to problem, as all strides
  const uint32_t* a_groups;
  int64_t a_stride;
  const uint32_t* b_groups;
  int64_t b_stride;
  const uint32_t* first_group;
  int64_t first_stride;
  IndexVector group_count;
  int64_t group_count_stride;
  LiveCounts a_counts;
  LiveCounts b_counts;
  IndexResult positions;

  explicit GroupSearchOperands(const Call& call);

  MGPU_HOST_DEVICE uint32_t groups(int64_t problem) const {
    return static_cast<uint32_t>(clamp<int64_t>(group_count[problem * group_count_stride], 0, kGroupTable));
  }

  template <typename Index, bool kForward>
  MGPU_HOST_DEVICE GroupWalk<Index, kForward> walk(int64_t problem) const {
    return {static_cast<const Index*>(cuts.data) + problem * cuts_stride,
            a_groups + problem * a_stride,
            b_groups + problem * b_stride,
            first_group[problem * first_stride],
            groups(problem),
            a_counts(problem, a_length),
            b_counts(problem, b_length),
            static_cast<Index*>(positions.data) + problem * a_length};
  }

  // The number of parts of each problem, which are walked concurrently. `max_parts` (over all problems) and `min_slots`
  // limit it, but a problem has at least one part, and a position in a part fits 32 bits.
  int64_t parts(int64_t max_parts, int64_t min_slots) const {
    const int64_t slots = a_length + b_length;
    const int64_t wanted = minimum(max_parts / maximum<int64_t>(problems, 1), ceil_div(slots, min_slots));
    return maximum(wanted, 1 + (slots >> 30));
  }

  // These are for CUDA (plan.h).
  int64_t cuda_parts(int64_t multiprocessors) const;
  struct Scratch;
  Scratch layout(Workspace& workspace, int64_t parts) const;

  template <typename Visit>
  void dispatch(Visit visit) const {
    const auto with_index = [&](auto index) {
      forward ? visit(index, std::true_type{}) : visit(index, std::false_type{});
    };
    positions.wide ? with_index(int64_t{}) : with_index(int32_t{});
  }
};

}  // namespace mgpu
