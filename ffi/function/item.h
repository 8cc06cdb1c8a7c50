// The items of compiled functions: structs of small arrays, the leaves, each of which lies in an array of its own in
// memory. jit/function_data.cc writes the structs.
#pragma once

#include "algorithm/common.h"

// Marks a function that is too large to be inlined at each call.
#ifdef __CUDACC__
#define MGPU_CALLED __host__ __device__ __noinline__
#else
#define MGPU_CALLED inline
#endif

namespace mgpu {

constexpr int kMaxLeaves = 16;
constexpr int kMaxCaptures = 16;

struct Captures {
  const void* arrays[kMaxCaptures];

  template <typename T>
  MGPU_HOST_DEVICE const T* get(int i) const {
    return static_cast<const T*>(arrays[i]);
  }
};

template <typename T>
concept IsItem = requires { T::kLeaves; };

template <typename Item, int kLeaf = 0, typename Visit>
MGPU_HOST_DEVICE constexpr void for_each_leaf(Visit&& visit) {
  if constexpr (kLeaf < Item::kLeaves) {
    visit.template operator()<kLeaf>();
    for_each_leaf<Item, kLeaf + 1>(visit);
  }
}

// How kernels divide items among threads. The host computes it too, and knows only sizes.
struct ItemShape {
  int size;    // bytes of the struct in memory, or of the item made from it if that is larger
  int widest;  // bytes of an item in the array of its widest leaf
  int packed;  // bytes of an item in all of its arrays

  // As many items, a power of two, as have at most 16 bytes of the widest leaf and 64 in all, but at least one.
  MGPU_HOST_DEVICE constexpr int vector() const {
    int items = 1;
    while (2 * items * widest <= 16 && 2 * items * size <= 64) items *= 2;
    return items;
  }
  MGPU_HOST_DEVICE constexpr int rows() const { return clamp(64 / (vector() * packed), 1, 4); }
  // The vectors of a thread that keeps their states in registers.
  MGPU_HOST_DEVICE constexpr int segment_rows(int64_t state_bytes) const {
    return maximum(static_cast<int>(64 / (vector() * state_bytes)), 1);
  }
};

template <typename Item, int kLeaf>
constexpr int kLeafBytes = sizeof(Item::template leaf<kLeaf>(*static_cast<Item*>(nullptr)));

template <typename Item>
MGPU_HOST_DEVICE constexpr ItemShape item_shape() {
  ItemShape shape{Item::kLargest, 0, 0};
  for_each_leaf<Item>([&]<int kLeaf>() {
    shape.widest = maximum(shape.widest, kLeafBytes<Item, kLeaf>);
    shape.packed += kLeafBytes<Item, kLeaf>;
  });
  return shape;
}

// The bytes that are copied at a time, of kBytes. Memory is aligned to this width.
template <int kBytes>
constexpr int kCopyBytes = kBytes % 16 == 0  ? 16
                           : kBytes % 8 == 0 ? 8
                           : kBytes % 4 == 0 ? 4
                           : kBytes % 2 == 0 ? 2
                                             : 1;

#ifdef __CUDACC__

namespace cuda {

template <int kBytes>
struct CopyWord {
  using Type =
      std::conditional_t<kBytes == 16, uint4,
                         std::conditional_t<kBytes == 8, uint2,
                                            std::conditional_t<kBytes == 4, uint32_t,
                                                               std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;
};

template <int kBytes>
__device__ __forceinline__ void load_bytes(void* to, const void* from) {
  using Word = typename CopyWord<kCopyBytes<kBytes>>::Type;
#pragma unroll
  for (int i = 0; i < kBytes / static_cast<int>(sizeof(Word)); ++i) {
    const Word word = static_cast<const Word*>(from)[i];
    memcpy(static_cast<char*>(to) + i * sizeof(Word), &word, sizeof(Word));
  }
}
template <int kBytes>
__device__ __forceinline__ void store_bytes(void* to, const void* from) {
  using Word = typename CopyWord<kCopyBytes<kBytes>>::Type;
#pragma unroll
  for (int i = 0; i < kBytes / static_cast<int>(sizeof(Word)); ++i) {
    Word word;
    memcpy(&word, static_cast<const char*>(from) + i * sizeof(Word), sizeof(Word));
    static_cast<Word*>(to)[i] = word;
  }
}

}  // namespace cuda

#endif

template <typename Item>
struct ItemArrays {
  const void* leaves[kMaxLeaves];

  template <int kLeaf>
  MGPU_HOST_DEVICE const char* at(int64_t i) const {
    return static_cast<const char*>(leaves[kLeaf]) + i * kLeafBytes<Item, kLeaf>;
  }
  MGPU_HOST_DEVICE ItemArrays operator+(int64_t i) const {
    ItemArrays moved;
    for_each_leaf<Item>([&]<int kLeaf>() { moved.leaves[kLeaf] = at<kLeaf>(i); });
    return moved;
  }
  MGPU_HOST_DEVICE Item operator[](int64_t i) const {
    Item item;
    for_each_leaf<Item>([&]<int kLeaf>() {
      auto& leaf = Item::template leaf<kLeaf>(item);
      using Scalar = std::remove_cvref_t<decltype(leaf[0])>;
      constexpr int kElements = sizeof(leaf) / sizeof(Scalar);
      MGPU_UNROLL
      for (int e = 0; e < kElements; ++e) leaf[e] = reinterpret_cast<const Scalar*>(at<kLeaf>(i))[e];
    });
    return item;
  }
};

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

// The host's view of a compiled function's items, whose structs it does not know. Kernels' parameters have the same
// layout for all items.
struct AnyItem {
  [[maybe_unused]] static constexpr int kLeaves = 0;
};

}  // namespace mgpu
