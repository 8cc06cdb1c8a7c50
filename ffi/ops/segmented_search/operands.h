// The call of segmented_search as its kernels see it: each needle is looked up in its own segment.
#pragma once

#include "algorithm/partition_points.h"
#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;

// Operands: needles [.., n]; ids [.., n], the segment of each needle (if absent, all needles are looked up in the first
// segment); haystack [.., size], sorted within each segment; heads [.., m] and ends [.., m] or absent; needles_count
// [.., 1] and haystack_count [.., 1], which may be absent. Attributes: right, for side "right"; exact, for side "left":
// a needle is found only if its segment has an equal key. Result: positions [.., n] in the haystack, -1 for a needle
// that is not live, has no valid id, or is not found. Ids, heads, ends and positions have one type.
struct SegmentedSearchOperands {
  DType key_type;
  bool right;
  bool exact;
  SortedPair pair;     // the needles, which are in any order, and the haystack
  const void* ids;     // null if absent
  int64_t ids_stride;  // all strides are from problem to problem
  int64_t segments;
  const void* heads;
  int64_t heads_stride;
  const void* ends;  // null if a segment ends where the next begins
  int64_t ends_stride = 0;
  IndexResult positions;

  explicit SegmentedSearchOperands(const Call& call);

  // The live items of the first segment of a problem.
  template <typename Index>
  Range<int64_t> first_segment(int64_t problem) const {
    const int64_t live = pair.b.live(problem);
    const int64_t begin = clamp<int64_t>(static_cast<const Index*>(heads)[problem * heads_stride], 0, live);
    if (!ends) return {begin, live};
    return {begin, clamp<int64_t>(static_cast<const Index*>(ends)[problem * ends_stride], begin, live)};
  }

  // Looks up kCount needles of a problem on the CPU: needle `first`, and others `stride` apart. Past the end, it looks
  // up the last needle again. Needles and segments must exist. Each kind of read is in one loop over all needles,
  // without branches, so that no read waits for another; `hold` is as in partition_points.
  template <int kCount, typename Index, typename Order, typename Hold>
  MGPU_HOST_DEVICE void search(const Order& order, int64_t problem, int64_t first, int64_t stride, Hold hold) const {
    using Word = typename Order::Word;
    const Word* const needles = static_cast<const Word*>(pair.a.keys) + problem * pair.a.stride;
    const Word* const haystack = static_cast<const Word*>(pair.b.keys) + problem * pair.b.stride;
    const Index* const ids = static_cast<const Index*>(this->ids) + problem * ids_stride;
    const Index* const heads = static_cast<const Index*>(this->heads) + problem * heads_stride;
    const Index* const ends = static_cast<const Index*>(this->ends) + problem * ends_stride;
    const bool has_ends = this->ends;
    const int64_t needles_live = pair.a.live(problem);
    const auto live = static_cast<Index>(pair.b.live(problem));
    const auto needle = [&](int k) { return minimum(first + k * stride, pair.a.length - 1); };

    Word codes[kCount];
    Index segment[kCount];
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) segment[k] = this->ids ? ids[needle(k)] : Index{0};
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) codes[k] = needles[needle(k)];
    hold(segment);
    bool has_segment[kCount];
    Range<Index> searches[kCount];
    Index begins[kCount], stops[kCount];
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) {
      has_segment[k] = (needle(k) < needles_live) & (segment[k] >= 0) & (segment[k] < segments);
      segment[k] = has_segment[k] ? segment[k] : Index{0};
      begins[k] = heads[segment[k]];
      // The last segment may have no end of its own. Then this value is not used.
      stops[k] = *(has_ends ? ends + segment[k] : heads + segment[k] + (segment[k] + 1 < segments));
    }
    hold(begins);
    hold(stops);
    hold(codes);
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const bool ends_last = !has_ends & (segment[k] + 1 >= segments);
      const Index begin = clamp<Index>(begins[k], 0, live);
      stops[k] = clamp<Index>(ends_last ? live : stops[k], begin, live);
      searches[k] = {begin, stops[k]};
      codes[k] = order.rank(order.encode(codes[k]));
    }
    const auto is_equal = [&](Word bits, Word rank) { return order.rank(order.encode(bits)) == rank; };
    partition_points(
        searches, [&](int, Index i) { return haystack[i]; },
        [&](int k, Word bits) {
          const Word code = order.rank(order.encode(bits));
          return (code < codes[k]) | (right & (code == codes[k]));
        },
        hold);
    Index* const found = static_cast<Index*>(positions.data) + problem * pair.a.length;
    MGPU_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const Index position = searches[k].begin;
      const bool is_found =
          has_segment[k] && (!exact || (position < stops[k] && is_equal(haystack[position], codes[k])));
      found[needle(k)] = is_found ? position : Index{-1};
    }
  }

  // Calls visit(Index{}) with the type of positions.
  template <typename Visit>
  void dispatch_index(Visit visit) const {
    positions.wide ? visit(int64_t{}) : visit(int32_t{});
  }
};

}  // namespace mgpu
