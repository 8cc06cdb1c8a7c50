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
    a_code = shared_load<Word>(a);
    b_code = shared_load<Word>(b);
  }
}

// The cursor after the first `diagonal` items of the merge of two runs in shared memory: merge path, in strides that
// halve, from `stride` on, a power of two, at least half of the shorter run. On addresses a step is 9 instructions, not
// 17, where the stride is a constant and the loop unrolled.
template <typename Word, typename Less>
__device__ __forceinline__ MergeCursor shared_cursor(const Word* codes, const MergeCursor& runs, int diagonal,
                                                     int stride, Less less) {
  constexpr uint32_t kWidth = sizeof(Word);
  const int least = maximum(0, diagonal - (runs.b_end - runs.b));
  const uint32_t begin = shared_address(codes + runs.a);
  const uint32_t end = shared_address(codes) + minimum(runs.a + diagonal, runs.a_end) * kWidth;
  uint32_t a = begin + least * kWidth;
  uint32_t b = shared_address(codes) + (runs.b + diagonal - least) * kWidth;
  Word a_code{}, b_code{};
#pragma unroll
  for (; stride > 0; stride /= 2) {
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

template <int kStride, typename Word, typename Less>
__device__ MergeCursor shared_cursor(const Word* codes, const MergeCursor& runs, int diagonal, Less less) {
  return shared_cursor(codes, runs, diagonal, kStride, less);
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

// Takes kItems outputs of a merge of two runs, each followed by kItems greatest words, which may stand for items of the
// other run that equal them, as any item may: only where equal words are the same. The run that gave the last item is
// read on until its head is above the other's; the sum of the two places to be read next grows by one with each item.
// One load a step: a merge is bound by shared memory, and loads of neighbouring threads lie in random banks.
template <int kItems, typename Word, typename Take>
__device__ void take_either(const Word* words, const MergeCursor& cursor, Take take) {
  constexpr uint32_t kWidth = sizeof(Word);
  uint32_t next = shared_address(words + cursor.a);
  const uint32_t sum = next + shared_address(words + cursor.b) + kWidth;
  Word held = words[cursor.b];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    Word word;
    if constexpr (kWidth >= 4) {
      word = shared_load<Word>(next);
    } else {
      word = *static_cast<const volatile Word*>(__cvta_shared_to_generic(next));
    }
    next += kWidth;
    const bool other = held < word;
    take(i, other ? held : word);
    if (other) next = sum + (i + 1) * kWidth - next;
    held = other ? word : held;
  }
}

// The same where items that are equal differ in what belongs to them: A's go first. No word of either run may be the
// greatest. Gives words, and the shared addresses that they came from; A lies before B.
template <int kItems, typename Word, typename Take>
__device__ void take_in_order(const Word* words, const MergeCursor& cursor, Take take) {
  constexpr uint32_t kWidth = sizeof(Word);
  const uint32_t b_begin = shared_address(words + cursor.b);
  uint32_t taken = shared_address(words + cursor.a) - kWidth;  // where the last item came from; read on behind it
  const uint32_t sum = taken + b_begin;
  Word held = words[cursor.b];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const uint32_t next = taken + kWidth;
    Word word;
    if constexpr (kWidth == 4) {
      asm volatile("ld.shared.u32 %0, [%1+4];" : "=r"(word) : "r"(taken));
    } else if constexpr (kWidth == 8) {
      asm volatile("ld.shared.u64 %0, [%1+8];" : "=l"(word) : "r"(taken));
    } else {
      word = *static_cast<const volatile Word*>(__cvta_shared_to_generic(next));
    }
    bool other;                   // among equals, where what was read on is of B
    if constexpr (kWidth <= 4) {  // two instructions
      other = (uint64_t{held} << 32 | b_begin) <= (uint64_t{word} << 32 | next);
    } else {
      other = (held < word) | ((held == word) & (b_begin <= next));
    }
    taken = other ? sum + i * kWidth - taken : next;
    take(i, minimum(held, word), taken);
    held = maximum(held, word);
  }
}

// The same for any order: whether A has ended is asked for.
template <int kItems, typename Word, typename Less, typename Take>
__device__ void take_first(const Word* codes, const MergeCursor& cursor, Less less, Take take) {
  MergeHeads<Word> heads(codes, cursor);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool in_b = less(heads.b_key, heads.a_key) | (heads.a >= heads.a_end);
    take(i, in_b ? heads.b_key : heads.a_key, in_b ? heads.b : heads.a);
    heads.take(in_b);
  }
}

}  // namespace mgpu::cuda
