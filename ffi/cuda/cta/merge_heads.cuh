// Merging by one thread: two sorted runs in shared memory, the place in their merge where a thread starts, its items.
#pragma once

#include "algorithm/merge_path.h"

namespace mgpu::cuda {

// What is left of two sorted runs in shared memory: [a, a_end) and [b, b_end).
struct MergeCursor {
  int a, a_end, b, b_end;
};

// The cursor after the first `diagonal` items of the merge of two runs. `code(i)` gives the key at a position.
template <typename Code, typename Less>
__device__ MergeCursor merge_cursor(const MergeCursor& runs, int diagonal, Code code, Less less) {
  const int split = merge_path(
      runs.a_end - runs.a, runs.b_end - runs.b, diagonal, [&](int i) { return code(runs.a + i); },
      [&](int i) { return code(runs.b + i); }, less);
  return {runs.a + split, runs.a_end, runs.b + diagonal - split, runs.b_end};
}

// Where in shared memory a key lies, as the 32-bit address that its loads take.
template <typename Word>
__device__ uint32_t shared_address(const Word* key) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(key));
}

template <typename Word>
__device__ int position_of(uint32_t address, const Word* keys) {
  return static_cast<int>(address - shared_address(keys)) / static_cast<int>(sizeof(Word));
}

// Moves on in B or in A, and loads the head that follows. In C++ the compiler renames both heads and both addresses and
// spends four moves a step to join them again; predicated on both sides the step is 8 instructions instead of 13, and
// merging is bound by instructions (ncu, a round of the segmented sort: 65% of the issue slots, 49% of the memory).
template <typename Word>
__device__ void advance(bool in_b, uint32_t& a, uint32_t& b, Word& a_key, Word& b_key) {
  if constexpr (sizeof(Word) == 4) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %4, 0; @p add.u32 %1, %1, 4; @!p add.u32 %0, %0, 4;"
        " @p ld.shared.u32 %3, [%1]; @!p ld.shared.u32 %2, [%0]; }"
        : "+r"(a), "+r"(b), "+r"(a_key), "+r"(b_key)
        : "r"(static_cast<int>(in_b)));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %4, 0; @p add.u32 %1, %1, 8; @!p add.u32 %0, %0, 8;"
        " @p ld.shared.u64 %3, [%1]; @!p ld.shared.u64 %2, [%0]; }"
        : "+r"(a), "+r"(b), "+l"(a_key), "+l"(b_key)
        : "r"(static_cast<int>(in_b)));
  } else {
    const uint32_t next = (in_b ? b : a) + sizeof(Word);
    const Word key = *static_cast<const Word*>(__cvta_shared_to_generic(next));
    (in_b ? b : a) = next;
    (in_b ? b_key : a_key) = key;
  }
}

// The heads of a serial merge of two runs in shared memory: the smaller one goes first, A's among equals. Past the end
// of both, items seem to come from A, and as many positions are read.
template <typename Word>
struct MergeHeads {
  uint32_t a, a_end, b, b_end;
  Word a_key, b_key;

  __device__ MergeHeads(const Word* keys, MergeCursor cursor)
      : a(shared_address(keys + cursor.a)),
        a_end(shared_address(keys) + cursor.a_end * sizeof(Word)),
        b(shared_address(keys + cursor.b)),
        b_end(shared_address(keys + cursor.b_end)),
        a_key(keys[cursor.a]),
        b_key(keys[cursor.b]) {}

  // Whether B's head goes first. & and |: nothing here is worth a branch.
  template <typename Less>
  __device__ bool next_is_b(Less less) const {
    return (b < b_end) & ((a >= a_end) | less(b_key, a_key));
  }
  __device__ void take(bool in_b) { advance(in_b, a, b, a_key, b_key); }
};

}  // namespace mgpu::cuda
