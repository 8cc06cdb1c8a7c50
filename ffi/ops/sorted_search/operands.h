#pragma once

#include "algorithm/sorted_pair.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;
struct MergeSplits;

// Operands: needles [.., n] and haystack [.., m], both sorted; needles_count [.., 1] and haystack_count [.., 1], each
// of which may be absent. Attribute: right, whether the side is "right". Result: positions [.., n] in the haystack;
// they are -1 for needles past their count.
//
// A merge that takes equal items of A before those of B gives each item of A its lower bound in B, and each item of B
// its upper bound in A. So the needles are A for side left, and B for side right.
struct SortedSearchOperands {
  DType key_type;
  bool needles_are_b;
  SortedPair pair;
  IndexResult positions;

  explicit SortedSearchOperands(const Call& call);
  MergeSplits layout(Workspace& workspace) const;  // scratch memory on CUDA
  MGPU_HOST_DEVICE const SortedRows& needles() const { return needles_are_b ? pair.b : pair.a; }
  MGPU_HOST_DEVICE const SortedRows& haystack() const { return needles_are_b ? pair.a : pair.b; }

  // Whether a binary search for each needle is faster
  // than a merge, which reads the whole haystack.
  bool prefers_binary_search() const { return needles().length * 64 <= haystack().length; }

  // Returns -1 if the needle is dead.
  template <typename Order>
  MGPU_HOST_DEVICE int64_t search(const Order& order, int64_t row, int64_t i, const typename Order::Word* needles,
                                  const typename Order::Word* haystack) const {
    if (i >= this->needles().live(row)) return -1;
    const auto needle = order.encode(needles[i]);
    const auto keys = [&](int64_t j) { return order.encode(haystack[j]); };
    const auto less = [&](auto x, auto y) { return order.less(x, y); };
    const int64_t live = this->haystack().live(row);
    return needles_are_b ? upper_bound(int64_t{0}, live, keys, needle, less)
                         : lower_bound(int64_t{0}, live, keys, needle, less);
  }
};

// Operands: a [.., n_a] and b [.., n_b], both sorted; a_count [.., 1] and b_count [.., 1], each of which may be absent.
// Attribute: right, whether the side is "right". Results: a_index and b_index, each item's position in the other
// operand; a_match and b_match (bool), whether it equals an item there; a_match_count [..] and b_match_count [..].
// Indices and counts have one type.
//
// Side right is side left with A and B swapped; then the members here are swapped too.
struct SortedMatchOperands {
  struct Side {
    IndexResult index;
    bool* match;
    IndexResult count;
  };

  DType key_type;
  SortedPair pair;
  Side a;
  Side b;

  explicit SortedMatchOperands(const Call& call);
  MergeSplits layout(Workspace& workspace) const;  // scratch memory on CUDA
};

}  // namespace mgpu
