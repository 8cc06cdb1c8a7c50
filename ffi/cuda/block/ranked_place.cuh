// A place orders items of equal keys too. It is one number: the key's rank (Order::rank) above the item's position,
// which takes the low 32 bits, or the low 64 of 128.
#pragma once

#include "algorithm/key_order.h"

namespace mgpu::cuda {

template <typename Word>
using RankedPlace = std::conditional_t<sizeof(Word) == 8, unsigned __int128, uint64_t>;

template <typename Order>
__device__ __forceinline__ RankedPlace<typename Order::Word> ranked_place(const Order& order, typename Order::Word code,
                                                                          uint32_t position) {
  using Place = RankedPlace<typename Order::Word>;
  return Place{order.rank(code)} << (sizeof(Place) == 16 ? 64 : 32) | position;
}

// Shifts split the place into words, because nvcc 13.0 copies the bytes of 128-bit numbers through local memory.
template <typename Place>
__device__ __forceinline__ Place shuffle_place(Place place, int lane) {
  Place moved = 0;
#pragma unroll
  for (int shift = 0; shift < static_cast<int>(8 * sizeof(Place)); shift += 64) {
    moved |= Place{__shfl_sync(0xffffffffu, static_cast<uint64_t>(place >> shift), lane)} << shift;
  }
  return moved;
}

}  // namespace mgpu::cuda
