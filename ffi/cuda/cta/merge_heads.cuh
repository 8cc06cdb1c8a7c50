// Merging by one thread: two sorted runs in shared memory, the place in their merge where a thread starts, its items.
#pragma once

#include <bit>

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

// A key of shared memory by its address.
template <typename Word>
__device__ Word shared_load(uint32_t address) {
  if constexpr (sizeof(Word) == 4) {
    Word key;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(key) : "r"(address));
    return key;
  } else if constexpr (sizeof(Word) == 8) {
    Word key;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(key) : "r"(address));
    return key;
  } else if constexpr (sizeof(Word) == 16) {
    uint64_t low, high;
    asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "r"(address));
    return Word{high} << 64 | low;
  } else {
    return *static_cast<const Word*>(__cvta_shared_to_generic(address));
  }
}

// Loads a key of each run where `inside`: predicated, as `advance` is.
template <typename Word>
__device__ void load_probes(bool inside, uint32_t a, uint32_t b, Word& a_key, Word& b_key) {
  if constexpr (sizeof(Word) == 4) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p ld.shared.u32 %0, [%2]; @p ld.shared.u32 %1, [%3]; }"
                 : "+r"(a_key), "+r"(b_key)
                 : "r"(a), "r"(b), "r"(static_cast<int>(inside)));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p ld.shared.u64 %0, [%2]; @p ld.shared.u64 %1, [%3]; }"
                 : "+l"(a_key), "+l"(b_key)
                 : "r"(a), "r"(b), "r"(static_cast<int>(inside)));
  } else if (inside) {
    a_key = shared_load<Word>(a);
    b_key = shared_load<Word>(b);
  }
}

// The cursor after the first `diagonal` items of the merge of two runs in shared memory: merge path, in strides that
// halve, from `stride` on, a power of two, at least half of the shorter run. On addresses a step is 9 instructions, not
// 17, where the stride is a constant and the loop unrolled. The cursor lies within the runs even where keys are not
// sorted.
template <typename Word, typename Less>
__device__ __forceinline__ MergeCursor shared_cursor(const Word* keys, const MergeCursor& runs, int diagonal,
                                                     int stride, Less less) {
  constexpr uint32_t kWidth = sizeof(Word);
  const int least = maximum(0, diagonal - (runs.b_end - runs.b));
  const uint32_t begin = shared_address(keys + runs.a);
  const uint32_t end = shared_address(keys) + minimum(runs.a + diagonal, runs.a_end) * kWidth;
  uint32_t a = begin + least * kWidth;
  uint32_t b = shared_address(keys) + (runs.b + diagonal - least) * kWidth;
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

// The same in runs of kItems items together at most.
template <int kItems, typename Word, typename Less>
__device__ MergeCursor shared_cursor(const Word* keys, const MergeCursor& runs, int diagonal, Less less) {
  constexpr int kStride = std::bit_floor(unsigned{kItems} / 2);  // the shorter run has at most half of them
  return shared_cursor(keys, runs, diagonal, kStride, less);
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

// The heads of a serial merge as codes; with kOpen, neither run comes to its end. One load a step by all lanes: two
// predicated ones meet in banks more often, and so each code is made once.
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
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p add.u32 %1, %1, %3; @!p add.u32 %0, %0, %3; }"
                 : "+r"(a), "+r"(b)
                 : "r"(static_cast<int>(in_b)), "n"(kBytes));
    a_code = in_b ? a_code : code;
    b_code = in_b ? code : b_code;
  }
};

}  // namespace mgpu::cuda
