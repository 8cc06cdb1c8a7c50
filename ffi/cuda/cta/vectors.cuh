// 16 bytes at a time: the loads and stores that reach memory bandwidth.
#pragma once

#include "algorithm/operators.h"
#include "function/item.h"

namespace mgpu::cuda {

// As many items as 16 bytes hold.
template <typename Element>
struct Vector {
  static constexpr int kItems = 16 / sizeof(Element);
  Element items[kItems];

  // `i` is a multiple of kItems, and x is aligned to 16 bytes.
  __device__ __forceinline__ static Vector load(const Element* x, int64_t i) {
    const uint4 words = *reinterpret_cast<const uint4*>(x + i);
    Vector vector;
    memcpy(&vector, &words, sizeof(vector));
    return vector;
  }
};

// Of items in an array a leaf, 16 bytes of the widest leaf at most.
template <IsItem Element>
struct Vector<Element> {
  static constexpr int kItems = item_shape<Element>().vector();
  Element items[kItems];

  // `i` is a multiple of kItems, and all arrays are aligned to 16 bytes.
  __device__ __forceinline__ static Vector load(const ItemArrays<Element>& x, int64_t i) {
    Vector vector;
    for_each_leaf<Element>([&]<int kLeaf>() {
      using Leaf = std::remove_cvref_t<decltype(Element::template leaf<kLeaf>(vector.items[0]))>;
      Leaf leaves[kItems];
      load_bytes<sizeof(leaves)>(leaves, x.template at<kLeaf>(i));
      vector.template set<kLeaf>(leaves);
    });
    return vector;
  }

  // The part of all items that one leaf is.
  template <int kLeaf, typename Leaf>
  __device__ __forceinline__ void set(const Leaf (&leaves)[kItems]) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      auto& to = Element::template leaf<kLeaf>(items[k]);
#pragma unroll
      for (int e = 0; e < static_cast<int>(sizeof(Leaf) / sizeof(to[0])); ++e) to[e] = leaves[k][e];
    }
  }
};

// Where elements lie: in an array, or in an array a leaf.
template <typename Element>
struct SourceOf_ {
  using Type = const Element*;
};
template <IsItem Element>
struct SourceOf_<Element> {
  using Type = ItemArrays<Element>;
};
template <typename Element>
using SourceOf = typename SourceOf_<Element>::Type;

// Stores items, 8 bytes or more in all, at an index that is a multiple of kCount, to memory aligned to 16 bytes.
template <int kCount, typename T>
__device__ __forceinline__ void store_vector(T* to, int64_t i, const T (&items)[kCount]) {
  constexpr int kBytes = kCount * sizeof(T);
  using Word = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
  Word words[kBytes / sizeof(Word)];
  memcpy(words, items, kBytes);
#pragma unroll
  for (int word = 0; word < kBytes / static_cast<int>(sizeof(Word)); ++word) {
    reinterpret_cast<Word*>(to + i)[word] = words[word];
  }
}

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// What a thread has of a reduction of items from `begin` on, taken in the order of their positions.
template <typename Operator>
class Gathered {
 public:
  __device__ __forceinline__ Gathered(const Operator& op, int64_t /*begin*/) : op_(op), state_(op.identity()) {}

  template <int kCount>
  __device__ __forceinline__ void take(const typename Operator::Element (&items)[kCount], int64_t position) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) state_ = op_.combine(state_, op_.extract(items[i], position + i));
  }
  __device__ __forceinline__ typename Operator::State state() const { return state_; }

 private:
  const Operator& op_;
  typename Operator::State state_;
};

// The index of an extremum: 32 bits each of code and of offset from `begin`, half the instructions of a 64-bit state.
// An item that equals the identity is never less than it, so the first item stands where nothing was found.
template <typename Word, typename State>
  requires(sizeof(Word) <= 4)
class Gathered<ArgExtremum<Word, State>> {
  using Operator = ArgExtremum<Word, State>;

 public:
  __device__ __forceinline__ Gathered(const Operator& op, int64_t begin) : op_(op), begin_(begin) {}

  template <int kCount>
  __device__ __forceinline__ void take(const Word (&items)[kCount], int64_t position) {
    const int offset = static_cast<int>(position - begin_);
    int found = -1;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t code = op_.encode(items[i]);
      const bool less = code < code_;
      code_ = less ? code : code_;
      found = less ? i : found;
    }
    if (first_ < 0) first_ = offset;
    if (found >= 0) offset_ = offset + found;
  }
  __device__ __forceinline__ State state() const {
    if (first_ < 0) return op_.identity();
    return Operator::make(static_cast<Word>(code_), begin_ + (offset_ < 0 ? first_ : offset_));
  }

 private:
  const Operator& op_;
  int64_t begin_;
  uint32_t code_ = ~0u;
  int offset_ = -1;
  int first_ = -1;
};

// The combination of x[begin .. end), fewer than 2^31 items, by `threads` threads, of which this is number `thread`:
// its part of it. The order is that of the positions a thread meets, so it serves operators that commute.
template <typename Operator>
__device__ typename Operator::State fold_strided(const Operator& op, const SourceOf<typename Operator::Element>& x,
                                                 bool aligned, int64_t begin, int64_t end, int thread, int threads) {
  using Vector = Vector<typename Operator::Element>;
  constexpr int kInFlight = 4;  // loads before the first use
  Gathered<Operator> gathered(op, begin);
  const auto take_one = [&](int64_t i) {
    const typename Operator::Element item[1] = {x[i]};
    gathered.take(item, i);
  };
  const int64_t first = aligned ? minimum(end, ceil_div<int64_t>(begin, Vector::kItems) * Vector::kItems) : end;
  const int64_t last = maximum(first, end / Vector::kItems * Vector::kItems);
  for (int64_t i = begin + thread; i < first; i += threads) take_one(i);
  int64_t i = first + int64_t{thread} * Vector::kItems;
  const int64_t stride = int64_t{threads} * Vector::kItems;
  for (; i + (kInFlight - 1) * stride < last; i += kInFlight * stride) {
    Vector vectors[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) vectors[k] = Vector::load(x, i + k * stride);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) gathered.take(vectors[k].items, i + k * stride);
  }
  for (; i < last; i += stride) gathered.take(Vector::load(x, i).items, i);
  for (int64_t i = last + thread; i < end; i += threads) take_one(i);
  return gathered.state();
}

}  // namespace mgpu::cuda
