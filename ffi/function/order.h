// A compiled function as an order of the kernels: `Function` has an item's struct and less(a, b). A key is handled as a
// word of the bytes of an item's leaves, one after the other; what is left of the word is zero.
#pragma once

#include "function/item.h"

namespace mgpu {

// As a host knows it: how wide its words are.
template <typename Word_>
struct AnyOrder {
  using Word = Word_;
  Captures captures;
};

template <typename Function, typename Word_>
struct FunctionOrder {
  using Word = Word_;
  using Item = typename Function::Item;
  static constexpr bool kTotal = false;

  Captures captures;

  // Where the bytes of a leaf begin.
  template <int kLeaf>
  static constexpr int offset() {
    if constexpr (kLeaf == 0) {
      return 0;
    } else {
      return offset<kLeaf - 1>() + kLeafBytes<Item, kLeaf - 1>;
    }
  }
  static_assert(offset<Item::kLeaves>() <= static_cast<int>(sizeof(Word)));

  MGPU_HOST_DEVICE static Item item(Word word) {
    Item item;
    for_each_leaf<Item>([&]<int kLeaf>() {
      auto& leaf = Item::template leaf<kLeaf>(item);
      memcpy(leaf, reinterpret_cast<const char*>(&word) + offset<kLeaf>(), sizeof(leaf));
    });
    return item;
  }
  MGPU_HOST_DEVICE Word encode(Word bits) const { return bits; }
  MGPU_HOST_DEVICE Word decode(Word code) const { return code; }
  MGPU_HOST_DEVICE bool less(Word a, Word b) const { return Function{captures}.less(item(a), item(b)); }
};

}  // namespace mgpu
