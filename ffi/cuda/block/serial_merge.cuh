// Merging by one thread: it finds its place in the merge of two sorted runs in shared
// memory, and takes its items from there on. The steps differ in what they ask of the runs:
//
//   take_either    runs end in greatest words, and equal words are the same: one load and one comparison per step
//   take_in_order  like take_either, but among equal words A's go first, which their addresses tell
//   take_first     any order; runs end in greatest words, but A's end is checked
//   MergeHeads     any order and any runs; both ends are checked, and both heads are held
//     take_merged  takes from one merge, or from the two that a thread's items belong to in a segmented sort
//   CodeHeads      like MergeHeads, but encodes keys when it reads them; with kOpen, it checks no end
#pragma once

#include "algorithm/merge_path.h"
#include "cuda/ptx.cuh"

namespace mgpu::cuda {

// The rest of two sorted runs in shared memory: [a, a_end) and [b, b_end).
struct MergeCursor {
  int a, a_end, b, b_end;
};

// `code(i)` gives the key at a position.
template <typename Code, typename Less>
__device__ MergeCursor merge_cursor(const MergeCursor& runs, int diagonal, Code code, Less less) {
  const int split = merge_path(
      runs.a_end - runs.a, runs.b_end - runs.b, diagonal, [&](int i) { return code(runs.a + i); },
      [&](int i) { return code(runs.b + i); }, less);
  return {runs.a + split, runs.a_end, runs.b + diagonal - split, runs.b_end};
}

// The cursor after the first `diagonal` items of the merge: it searches the merge path
// in halving strides. The first one, `stride`, is a power of two and more than half of
// the shorter run. The cursor lies within the runs even if keys are not sorted.
template <typename Word, typename Less>
__device__ __forceinline__ MergeCursor shared_cursor(const Word* keys, const MergeCursor& runs, int diagonal,
                                                     int stride, Less less) {
  constexpr uint32_t kWidth = sizeof(Word);
  const int low = maximum(0, diagonal - (runs.b_end - runs.b));
  const uint32_t begin = shared_address(keys + runs.a);
  const uint32_t end = shared_address(keys) + minimum(runs.a + diagonal, runs.a_end) * kWidth;
  uint32_t a = begin + low * kWidth;
  uint32_t b = shared_address(keys) + (runs.b + diagonal - low) * kWidth;
  Word a_key{}, b_key{};
#pragma unroll
  for (; stride > 0; stride /= 2) {
    const bool inside = a + stride * kWidth <= end;
    load_probes(inside, a + (stride - 1) * kWidth, b - stride * kWidth, a_key, b_key);
    if (inside & !less(b_key, a_key)) {
      a += stride * kWidth;
      b -= stride * kWidth;
    }
  }
  const int split = static_cast<int>(a - begin) / static_cast<int>(kWidth);
  return {runs.a + split, runs.a_end, runs.b + diagonal - split, runs.b_end};
}

MGPU_HOST_DEVICE constexpr int first_stride(int64_t shorter) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(shorter)));
}

// The runs have at most kItems items together.
template <int kItems, typename Word, typename Less>
__device__ MergeCursor shared_cursor(const Word* keys, const MergeCursor& runs, int diagonal, Less less) {
  constexpr int kStride = first_stride(kItems / 2);
  return shared_cursor(keys, runs, diagonal, kStride, less);
}

// The smaller head goes first, A's among equals. Past the end of both runs, items seem to come from A, and positions
// past A's end are read.
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

  // Uses & and | to avoid branches.
  template <typename Less>
  __device__ bool next_is_b(Less less) const {
    return (b < b_end) & ((a >= a_end) | less(b_key, a_key));
  }
  __device__ void take(bool in_b) { advance(in_b, a, b, a_key, b_key); }
};

// Heads as codes, so that each key is encoded once. With kOpen, neither
// run ends. A step makes one load, from the run that it takes from.
template <typename Order, bool kOpen_>
struct CodeHeads {
  using Word = typename Order::Word;
  static constexpr bool kOpen = kOpen_;
  uint32_t a, a_end, b, b_end;
  Word a_code, b_code;
  Order order;

  __device__ CodeHeads(const Word* keys, MergeCursor cursor, const Order& order)
      : a(shared_address(keys + cursor.a)),
        a_end(shared_address(keys + cursor.a_end)),
        b(shared_address(keys + cursor.b)),
        b_end(shared_address(keys + cursor.b_end)),
        a_code(order.encode(keys[cursor.a])),
        b_code(order.encode(keys[cursor.b])),
        order(order) {}

  __device__ bool next_is_b() const {
    if constexpr (kOpen) return order.less(b_code, a_code);
    return (b < b_end) & ((a >= a_end) | order.less(b_code, a_code));
  }

  __device__ void take(bool in_b) {
    constexpr int kBytes = sizeof(Word);
    const Word code = order.encode(shared_load<Word>((in_b ? b : a) + kBytes));
    move_either<kBytes>(in_b, a, b);
    a_code = in_b ? a_code : code;
    b_code = in_b ? code : b_code;
  }
};

// Merges the run at `position` with an empty run, so items stay in place.
__device__ inline MergeCursor stay_cursor(int position) { return {position, 1 << 24, 0, 0}; }

template <typename Word, typename Less>
__device__ MergeCursor merge_cursor(const Word* codes, int a, int b, int b_end, int diagonal, Less less) {
  return merge_cursor(MergeCursor{a, b, b, b_end}, diagonal, [&](int i) { return codes[i]; }, less);
}

template <typename Word, typename Less>
__device__ void take_head(MergeHeads<Word>& heads, Less less, Word& code, uint32_t& from) {
  const bool in_b = heads.next_is_b(less);
  code = in_b ? heads.b_key : heads.a_key;
  from = in_b ? heads.b : heads.a;
  heads.take(in_b);
}

// Takes the next kItems outputs of one merge: their codes, and the shared
// addresses that they came from. Also reads the code after each of them.
template <int kItems, typename Word, typename Less>
__device__ void take_merged(const Word* codes, MergeCursor cursor, Less less, Word (&taken)[kItems],
                            uint32_t (&from)[kItems]) {
  MergeHeads<Word> heads(codes, cursor);
#pragma unroll
  for (int i = 0; i < kItems; ++i) take_head(heads, less, taken[i], from[i]);
}

// Takes the next kItems outputs of two merges. The cursor `first` gives outputs `begin` to `first_end`. The cursor
// `last`, which starts at a segment's head, gives those from `last_begin` on. Items in between stay.
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

// Takes kItems outputs of a merge of two runs, each followed by kItems largest words. Such
// a word may be taken for an equal item of the other run, so equal words must be
// interchangeable. A step has one load: one of the two places to read next gives the other.
template <int kItems, typename Word, typename Take>
__device__ void take_either(const Word* words, const MergeCursor& cursor, Take take) {
  constexpr uint32_t kWidth = sizeof(Word);
  uint32_t next = shared_address(words + cursor.a);
  const uint32_t sum = next + shared_address(words + cursor.b) + kWidth;
  Word held = words[cursor.b];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const Word word = shared_load<Word>(next);
    next += kWidth;
    const bool other = held < word;
    take(i, other ? held : word);
    if (other) next = sum + (i + 1) * kWidth - next;
    held = other ? word : held;
  }
}

// Like take_either, but A's items go before equal items of B. No word of either run may be the largest one, and A lies
// before B in shared memory. Calls take(i, word, address) with the shared address that each word came from.
template <int kItems, typename Word, typename Take>
__device__ void take_in_order(const Word* words, const MergeCursor& cursor, Take take) {
  constexpr uint32_t kWidth = sizeof(Word);
  const uint32_t b_begin = shared_address(words + cursor.b);
  uint32_t taken =
      shared_address(words + cursor.a) - kWidth;  // where the last item came from; reading continues after it
  const uint32_t sum = taken + b_begin;
  Word held = words[cursor.b];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const uint32_t next = taken + kWidth;
    const Word word = shared_load<Word>(next);
    bool other;  // among equals, true if the word just read is B's
    if constexpr (kWidth <= 4) {
      other = (uint64_t{held} << 32 | b_begin) <= (uint64_t{word} << 32 | next);
    } else {
      other = (held < word) | ((held == word) & (b_begin <= next));
    }
    taken = other ? sum + i * kWidth - taken : next;
    take(i, minimum(held, word), taken);
    held = maximum(held, word);
  }
}

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
