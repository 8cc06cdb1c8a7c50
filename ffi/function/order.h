// A compiled function as an order of the kernels: `Function` has an item's struct and less(a, b).
#pragma once

#include "function/item.h"

namespace mgpu {

// The host's view of a FunctionOrder.
template <typename Word_>
struct AnyOrder {
  using Word = Word_;
  Captures captures;
};

// The order of small items. A key is a word that begins with the bytes of an item's struct, in which the leaves with
// the widest elements come first; the rest of the word is zero.
template <typename Function, typename Word_>
struct FunctionOrder {
  using Word = Word_;
  using Item = typename Function::Item;
  static constexpr bool kTotal = false;

  Captures captures;

  static_assert(item_shape<Item>().packed <= static_cast<int>(sizeof(Word)));

  MGPU_HOST_DEVICE static Item item(Word word) {
    Item item;
    memcpy(&item, &word, minimum(sizeof(Item), sizeof(Word)));
    return item;
  }
  MGPU_HOST_DEVICE Word encode(Word bits) const { return bits; }
  MGPU_HOST_DEVICE Word decode(Word code) const { return code; }
  MGPU_HOST_DEVICE bool less(Word a, Word b) const { return Function{captures}.less(item(a), item(b)); }
};

// The data of an order of larger items, which stay in place. A key is its position among the items of all rows, and a
// sorted key its position within its row. A comparison reads both items.
template <typename Item>
struct ItemPositions {
  ItemArrays<Item> items;
  Captures captures;
  uint32_t length;
  uint32_t last;
};

struct AnyIndexOrder : ItemPositions<AnyItem> {
  using Word = uint32_t;
};

#ifdef __CUDACC__

template <typename Function>
struct FunctionIndexOrder : ItemPositions<typename Function::Item> {
  using Word = uint32_t;
  static constexpr bool kTotal = false;

  __device__ Word input_code(int64_t position) const { return static_cast<Word>(position); }
  __device__ Word decode(Word code) const { return code % this->length; }
  // The kernels also compare words that are not keys.
  __device__ typename Function::Item item(Word code) const { return this->items[minimum(code, this->last)]; }
  // A comparison of wide items is too large to inline at each use.
  __device__ __noinline__ bool less(Word a, Word b) const { return Function{this->captures}.less(item(a), item(b)); }
};

#endif

}  // namespace mgpu
