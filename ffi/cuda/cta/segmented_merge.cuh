// Merging by a thread within the segments of its items: the step that the rounds inside a tile and the rounds over
// tiles share.
#pragma once

#include "cuda/cta/merge_heads.cuh"

namespace mgpu::cuda {

// Leaves items where they are: a merge of what begins at `position` with nothing.
__device__ inline MergeCursor stay_cursor(int position) { return {position, 1 << 24, 0, 0}; }

// Loads a code of each run where `inside`: predicated, as `advance` is.
template <typename Word>
__device__ void load_probes(bool inside, uint32_t a, uint32_t b, Word& a_code, Word& b_code) {
  if constexpr (sizeof(Word) == 4) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p ld.shared.u32 %0, [%2]; @p ld.shared.u32 %1, [%3]; }"
                 : "+r"(a_code), "+r"(b_code)
                 : "r"(a), "r"(b), "r"(static_cast<int>(inside)));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p ld.shared.u64 %0, [%2]; @p ld.shared.u64 %1, [%3]; }"
                 : "+l"(a_code), "+l"(b_code)
                 : "r"(a), "r"(b), "r"(static_cast<int>(inside)));
  } else if (inside) {
    a_code = *static_cast<const Word*>(__cvta_shared_to_generic(a));
    b_code = *static_cast<const Word*>(__cvta_shared_to_generic(b));
  }
}

// The cursor after the first `diagonal` items of the merge of two runs in shared memory: merge path, in strides that
// halve, from kStride on, at least half of the shorter run. On addresses a step is 9 instructions, not 17.
template <int kStride, typename Word, typename Less>
__device__ MergeCursor shared_cursor(const Word* codes, const MergeCursor& runs, int diagonal, Less less) {
  constexpr uint32_t kWidth = sizeof(Word);
  const int least = maximum(0, diagonal - (runs.b_end - runs.b));
  const uint32_t begin = shared_address(codes + runs.a);
  const uint32_t end = shared_address(codes) + minimum(runs.a + diagonal, runs.a_end) * kWidth;
  uint32_t a = begin + least * kWidth;
  uint32_t b = shared_address(codes) + (runs.b + diagonal - least) * kWidth;
  Word a_code{}, b_code{};
#pragma unroll
  for (int stride = kStride; stride > 0; stride /= 2) {
    const bool inside = a + stride * kWidth <= end;
    load_probes(inside, a + (stride - 1) * kWidth, b - stride * kWidth, a_code, b_code);
    if (inside & !less(b_code, a_code)) {
      a += stride * kWidth;
      b -= stride * kWidth;
    }
  }
  const int split = static_cast<int>(a - begin) / static_cast<int>(kWidth);
  return {runs.a + split, runs.a_end, runs.b + diagonal - split, runs.b_end};
}

// The cursor at output `diagonal` of the runs [a, b) and [b, b_end).
template <typename Word, typename Less>
__device__ MergeCursor merge_cursor(const Word* codes, int a, int b, int b_end, int diagonal, Less less) {
  return merge_cursor(MergeCursor{a, b, b, b_end}, diagonal, [&](int i) { return codes[i]; }, less);
}

// Takes one item: its code, and the shared address that it came from.
template <typename Word, typename Less>
__device__ void take_head(MergeHeads<Word>& heads, Less less, Word& code, uint32_t& from) {
  const bool in_b = heads.next_is_b(less);
  code = in_b ? heads.b_key : heads.a_key;
  from = in_b ? heads.b : heads.a;
  heads.take(in_b);
}

// Takes the next kItems outputs of one merge. Gives codes, and the shared addresses that they came from. Reads one
// code past the end of the tile at most.
template <int kItems, typename Word, typename Less>
__device__ void take_merged(const Word* codes, MergeCursor cursor, Less less, Word (&taken)[kItems],
                            uint32_t (&from)[kItems]) {
  MergeHeads<Word> heads(codes, cursor);
#pragma unroll
  for (int i = 0; i < kItems; ++i) take_head(heads, less, taken[i], from[i]);
}

// The same over two merges: outputs from position `begin` on, up to `first_end` by the cursor `first`, from
// `last_begin` on by the cursor `last`, which starts at a segment's head; between the two, items stay.
template <int kItems, typename Word, typename Less>
__device__ void take_merged(const Word* codes, int begin, MergeCursor first, int first_end, MergeCursor last,
                            int last_begin, Less less, Word (&taken)[kItems], uint32_t (&from)[kItems]) {
  MergeHeads<Word> heads(codes, first);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = begin + i;
    if (position == first_end) heads = MergeHeads<Word>(codes, {position, last.a_end, last.b, last.b});
    if (position == last_begin) heads.b_end = shared_address(codes + last.b_end);
    take_head(heads, less, taken[i], from[i]);
  }
}

}  // namespace mgpu::cuda
