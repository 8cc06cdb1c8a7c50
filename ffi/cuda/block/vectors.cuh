// Loads and stores of vectors, and a thread's part of a reduction by vectors.
#pragma once

#include "algorithm/operators.h"
#include "cuda/ptx.cuh"
#include "function/item.h"

namespace mgpu::cuda {

// The items in 16 bytes.
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

// The index is a multiple of kCount, and memory is aligned to 16 bytes.
template <int kCount, typename T>
__device__ __forceinline__ void store_vector(T* to, int64_t i, const T (&items)[kCount]) {
  store_bytes<sizeof(items)>(to + i, items);
}

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// A thread's part of a reduction takes its items in the order of their offsets from `begin`.
template <typename Operator>
class Gathered {
 public:
  __device__ __forceinline__ Gathered(const Operator& op, int64_t begin)
      : op_(op), begin_(begin), state_(op.identity()) {}

  template <int kCount>
  __device__ __forceinline__ void take(const typename Operator::Element (&items)[kCount], int offset) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) state_ = op_.combine(state_, op_.extract(items[i], begin_ + offset + i));
  }
  __device__ __forceinline__ typename Operator::State state() const { return state_; }

 private:
  const Operator& op_;
  int64_t begin_;
  typename Operator::State state_;
};

// The index of an extremum of 32-bit items, kept as a 32-bit code and a 32-bit offset
// from `begin`. If no code is less than the identity's, the first item is the answer.
template <typename Word, typename State>
  requires(sizeof(Word) == 4)
class Gathered<ArgExtremum<Word, State>> {
  using Operator = ArgExtremum<Word, State>;

 public:
  __device__ __forceinline__ Gathered(const Operator& op, int64_t begin) : op_(op), begin_(begin) {}

  template <int kCount>
  __device__ __forceinline__ void take(const Word (&items)[kCount], int offset) {
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

// The index of the largest float32 item, or of the smallest, which is the largest after a change of signs, by float
// instructions. A product with 1 or -1 and a sum with 0 make all NaNs identical and the zeros equal. A thread keeps the
// first vector that has the extremum, and finds the extremum's position among these items at the end.
template <typename State>
class GatheredFloats {
  using Operator = ArgExtremum<uint32_t, State>;
  static constexpr int kItems = 4;

 public:
  __device__ __forceinline__ GatheredFloats(const Operator& op, int64_t begin)
      : op_(op), sign_(op.order.flip >> 31 ? -1.0f : 1.0f), begin_(begin) {}

  template <int kCount>
  __device__ __forceinline__ void take(const uint32_t (&items)[kCount], int offset) {
    static_assert(kCount == 1 || kCount == kItems);
    float greatest = turn(items[0]);
#pragma unroll
    for (int i = 1; i < kCount; ++i) greatest = max_or_nan(greatest, turn(items[i]));
    const uint32_t bits = __float_as_uint(max_or_nan(greatest, __uint_as_float(greatest_)));
    // If all items have the smallest value, the first vector is kept.
    const bool changes = offset_ < 0 || bits != greatest_;
    greatest_ = bits;
    offset_ = changes ? offset : offset_;
#pragma unroll
    for (int i = 0; i < kItems; ++i) items_[i] = changes ? items[minimum(i, kCount - 1)] : items_[i];
  }
  __device__ __forceinline__ State state() const {
    if (offset_ < 0) return op_.identity();
    int found = kItems - 1;
#pragma unroll
    for (int i = kItems - 2; i >= 0; --i) {
      if (__float_as_uint(turn(items_[i])) == greatest_) found = i;
    }
    const uint32_t item = __float_as_uint(__uint_as_float(greatest_) * sign_);
    return Operator::make(op_.encode(item), begin_ + offset_ + found);
  }

 private:
  __device__ __forceinline__ float turn(uint32_t item) const { return __fmaf_rn(__uint_as_float(item), sign_, 0.0f); }

  const Operator& op_;
  float sign_;
  int64_t begin_;
  uint32_t greatest_ = 0xff800000u;  // the bits of -inf, which no item is below
  int offset_ = -1;
  uint32_t items_[kItems] = {};
};

// Codes of 8-bit and 16-bit items, two per word, each a signed 16-bit number. The extremum has the smallest code.
template <typename Word>
struct PackedCodes {
  static constexpr unsigned kMaxCode = 0x7fff7fffu;
  unsigned fold;  // bits that a negative float flips
  unsigned flip;
  unsigned step;     // added to the code of a negative float, so that the zeros are equal
  unsigned numbers;  // the largest magnitude of a number, and the sign bit

  __device__ __forceinline__ explicit PackedCodes(const ExtremumOrder<Word>& order) {
    const auto twice = [](unsigned bits) { return bits << 16 | bits; };
    const bool is_float = order.negative_zero != 0;
    fold = twice(order.fold);
    flip = sizeof(Word) == 1 ? order.flip * 0x01010101u : twice(order.flip ^ 0x8000u);
    step = !is_float ? 0 : flip ? ~0u : 0x00010001u;  // -1 if the order is reversed
    numbers = twice(order.largest_number) | 0x80008000u;
  }

  // Returns the smallest code in each half of the items' codes and of `smallest`.
  __device__ __forceinline__ unsigned take(unsigned items, unsigned smallest) const {
    if constexpr (sizeof(Word) == 1) {
      const unsigned codes = items ^ flip;
      return __vmins2(__vmins2(__byte_perm(codes, 0, 0x4140), __byte_perm(codes, 0, 0x4342)), smallest);
    } else {
      const unsigned negative = signs(items);
      const unsigned is_number = signs(numbers - (items & 0x7fff7fffu));  // no half borrows from the other
      const unsigned code = (((items ^ (negative & fold)) ^ flip) & is_number) | (~is_number & 0x80008000u);
      return __viaddmin_s16x2(code, negative & step & is_number, smallest);
    }
  }

 private:
  __device__ __forceinline__ static unsigned signs(unsigned halves) { return (halves >> 15 & 0x00010001u) * 0xffffu; }
};

// The index of an extremum of 8-bit and 16-bit items.
// It keeps the first vector that has the smallest code.
template <typename Word, typename State>
  requires(sizeof(Word) <= 2)
class Gathered<ArgExtremum<Word, State>> {
  using Operator = ArgExtremum<Word, State>;
  static constexpr int kItems = 16 / sizeof(Word);

 public:
  __device__ __forceinline__ Gathered(const Operator& op, int64_t begin) : op_(op), codes_(op.order), begin_(begin) {}

  template <int kCount>
  __device__ __forceinline__ void take(const Word (&items)[kCount], int offset) {
    static_assert(kCount == 1 || kCount == kItems);
    unsigned words[4];
    if constexpr (kCount == 1) {
      words[0] = items[0] * (sizeof(Word) == 1 ? 0x01010101u : 0x00010001u);
      words[1] = words[2] = words[3] = words[0];
    } else {
      memcpy(words, items, sizeof(words));
    }
    unsigned smallest = PackedCodes<Word>::kMaxCode;
#pragma unroll
    for (int i = 0; i < (kCount == 1 ? 1 : 4); ++i) smallest = codes_.take(words[i], smallest);
    smallest = __vmins2(smallest, __byte_perm(smallest, 0, 0x1032));
    // If all items have the largest code, the first vector is kept.
    const bool less = offset_ < 0 || static_cast<int>(smallest) < smallest_;
    smallest_ = less ? static_cast<int>(smallest) : smallest_;
    offset_ = less ? offset : offset_;
#pragma unroll
    for (int i = 0; i < 4; ++i) words_[i] = less ? words[i] : words_[i];
  }
  __device__ __forceinline__ State state() const {
    if (offset_ < 0) return op_.identity();
    Word items[kItems];
    memcpy(items, words_, sizeof(items));
    Word code = op_.encode(items[kItems - 1]);
    int found = kItems - 1;
#pragma unroll
    for (int i = kItems - 2; i >= 0; --i) {
      const Word other = op_.encode(items[i]);
      if (other <= code) found = i;
      code = minimum(code, other);
    }
    return Operator::make(code, static_cast<uint64_t>(begin_ + offset_ + found));
  }

 private:
  const Operator& op_;
  PackedCodes<Word> codes_;
  int64_t begin_;
  unsigned words_[4] = {};
  int smallest_ = static_cast<int>(PackedCodes<Word>::kMaxCode);
  int offset_ = -1;
};

// Combines the items of x[begin .. end), fewer than 2^30,
// that thread `thread` of `threads` takes. A thread's
// items are not contiguous, so the operator must commute.
template <int kInFlight, typename Part, typename Operator>
__device__ typename Operator::State fold_strided(const Operator& op, const SourceOf<typename Operator::Element>& x,
                                                 bool aligned, int64_t begin, int64_t end, int thread, int threads) {
  using Vector = Vector<typename Operator::Element>;
  constexpr int kItems = Vector::kItems;
  Part part(op, begin);
  const auto items = x + begin;
  const auto take_one = [&](int i) {
    const typename Operator::Element item[1] = {items[i]};
    part.take(item, i);
  };
  const int size = static_cast<int>(end - begin);
  const int to_vector = static_cast<int>(ceil_div<int64_t>(begin, kItems) * kItems - begin);
  const int first = aligned ? minimum(size, to_vector) : size;
  const int last = first + (size - first) / kItems * kItems;
#pragma unroll 1
  for (int i = thread; i < first; i += threads) take_one(i);
  // All threads take the
  // same number of rounds.
  const int stride = threads * kItems;
  int offset = first + thread * kItems;
  int left = last - first;
  const auto take_round = [&](auto is_there) {
    Vector vectors[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (is_there(k)) vectors[k] = Vector::load(items, offset + k * stride);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (is_there(k)) part.take(vectors[k].items, offset + k * stride);
    }
  };
#pragma unroll 1
  for (; left >= kInFlight * stride; left -= kInFlight * stride) {
    take_round([](int) { return true; });
    offset += kInFlight * stride;
  }
  // This round has no `if` around it, so that
  // ptxas makes all loads before it uses a result.
  left -= thread * kItems;
  take_round([&](int k) { return k * stride < left; });
#pragma unroll 1
  for (int i = last + thread; i < size; i += threads) take_one(i);
  return part.state();
}

}  // namespace mgpu::cuda
