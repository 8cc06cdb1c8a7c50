#pragma once

#include "algorithm/balanced_path.h"
#include "algorithm/set_operation.h"
#include "cuda/block/serial_merge.cuh"

namespace mgpu::cuda::set_operations {

// Turns the split of the merge path into the split of the balanced path, if few copies of a key are between the two;
// returns false if there may be many. `open` says whether the split separates a pair.
template <typename Word, typename Less>
__device__ bool balance_near(const Word* a, const Word* b, int b_count, Split<int>& split, bool& open, Less less) {
  constexpr int kMaxCopies = 4;
  const auto [i, j] = split;
  open = false;
  if (i == 0 || j == b_count) return true;
  const Word key = b[j];
  if (less(a[i - 1], key)) return true;
  const auto is_copy_in_a = [&](int before) { return before <= i && !less(a[i - before], key); };
  int paired = 0;  // copies in B before the split; A has at least as many
#pragma unroll 1
  while (paired < j && !less(b[j - 1 - paired], key)) {
    if (++paired > kMaxCopies) return false;
    if (!is_copy_in_a(paired + 1)) return true;
  }
  // Of A's further copies, half are replaced by copies in B.
  int moved = 0;
  bool in_b = true;
#pragma unroll 1
  while (in_b && is_copy_in_a(paired + 2 * moved + 2)) {
    if (++moved > kMaxCopies) return false;
    in_b = j + moved < b_count && !less(key, b[j + moved]);
  }
  open = in_b && is_copy_in_a(paired + 2 * moved + 1);
  split = {i - moved, j + moved};
  return true;
}

// The merge path splits the runs at `merge`.
template <typename Word, typename Less>
__device__ Split<int> balanced_cursor(const Word* keys, const MergeCursor& runs, const MergeCursor& merge, int diagonal,
                                      bool& open, Less less) {
  const Word* const a = keys + runs.a;
  const Word* const b = keys + runs.b;
  const int b_count = runs.b_end - runs.b;
  const int merged = merge.a - runs.a;
  Split<int> split{merged, diagonal - merged};
  if (balance_near(a, b, b_count, split, open, less)) return split;
  split = balanced_from_merged(
      b_count, merged, diagonal, [=](int i) { return a[i]; }, [=](int i) { return b[i]; }, less, true,
      [](int begin, int end, auto before) { return partition_point(begin, end, before); });
  open = split.a + split.b > diagonal;
  split.b = diagonal - split.a;
  return split;
}

// Walks over `share` items, at most kItems, in the order of the balanced path, which takes A's copy of a pair and then
// B's. Only the first `count` exist. Returns a bitmap of the kept items. `open` says whether the previous item is A's
// copy of a pair. note(i, in_b, heads) is called before each item is taken.
template <int kItems, typename Word, typename Less, typename Note>
__device__ unsigned walk(MergeHeads<Word> heads, bool open, int count, int share, SetRule rule, Less less, Note note) {
  struct {
    unsigned b = 0;       // the item is B's
    unsigned opened = 0;  // the item is A's copy of a pair, and B's copy comes next
  } steps;
  const bool was_open = open;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (i >= share) break;
    const bool has_b = heads.b < heads.b_end;
    const bool in_b = has_b & (open | (heads.a >= heads.a_end) | less(heads.b_key, heads.a_key));
    open = has_b & !in_b & !less(heads.a_key, heads.b_key);
    note(i, in_b, heads);
    steps.b |= in_b ? 1u << i : 0;
    steps.opened |= open ? 1u << i : 0;
    // keep() makes the compiler set the bits step by step.
    keep(steps.b, steps.opened);
    heads.take(in_b);
  }
  const unsigned live = (1u << clamp(count, 0, share)) - 1;
  const unsigned closed = steps.opened << 1 | unsigned{was_open};
  return live & ((rule.pairs ? steps.opened : 0) | (rule.a_unpaired ? ~steps.b & ~steps.opened : 0) |
                 (rule.b_unpaired ? steps.b & ~closed : 0));
}

}  // namespace mgpu::cuda::set_operations
