// Vectors of neighbouring columns.
#pragma once

#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/reduce_rows/plan.h"

namespace mgpu::cuda::row_reducing {

// A few neighbouring columns, in as few words as possible.
template <typename Item, int kCount>
struct Neighbours {
  static constexpr int kBytes = sizeof(Item) * kCount;
  using Word =
      std::conditional_t<kBytes % 16 == 0, uint4,
                         std::conditional_t<kBytes == 8, uint2,
                                            std::conditional_t<kBytes == 4, uint32_t,
                                                               std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;
  static constexpr int kWords = kBytes / sizeof(Word);
  Word words[kWords];

  __device__ __forceinline__ static Neighbours pack(const Item (&items)[kCount]) {
    Neighbours neighbours;
    memcpy(neighbours.words, items, kBytes);
    return neighbours;
  }
  __device__ __forceinline__ void unpack(Item (&items)[kCount]) const {
    if constexpr (sizeof(Item) == 2 && kBytes >= 4) {
      // The compiler joins these shifts with the conversion of items to 32 bits.
      uint32_t pairs[kCount / 2];
      memcpy(pairs, words, kBytes);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        items[k] = std::bit_cast<Item>(static_cast<uint16_t>(pairs[k / 2] >> 16 * (k % 2)));
      }
    } else {
      memcpy(items, words, kBytes);
    }
  }

  __device__ __forceinline__ static Neighbours load(const Item* from) {
    Neighbours neighbours;
#pragma unroll
    for (int i = 0; i < kWords; ++i) neighbours.words[i] = reinterpret_cast<const Word*>(from)[i];
    return neighbours;
  }
  // Loads the first `columns` columns, a multiple of `part`.
  __device__ __forceinline__ static Neighbours load(const Item* from, int columns, int part) {
    if constexpr (kCount == 1) {
      return load(from);
    } else {
      if (part >= kCount) return load(from);
      using Half = Neighbours<Item, kCount / 2>;
      Half halves[2] = {Half::load(from, columns, part), {}};
      if (columns > kCount / 2) halves[1] = Half::load(from + kCount / 2, columns - kCount / 2, part);
      Neighbours neighbours;
      memcpy(&neighbours, halves, sizeof(halves));
      return neighbours;
    }
  }
  __device__ __forceinline__ void store(Item* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
  }

  __device__ __forceinline__ void stream(Item* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) __stcs(reinterpret_cast<Word*>(to) + i, words[i]);
  }
  // Stores the first `columns` columns, a multiple of `part`.
  __device__ __forceinline__ void stream(Item* to, int columns, int part) const {
    if constexpr (kCount == 1) {
      stream(to);
    } else {
      if (part >= kCount) return stream(to);
      Neighbours<Item, kCount / 2> halves[2];
      memcpy(halves, words, sizeof(halves));
      halves[0].stream(to, columns, part);
      if (columns > kCount / 2) halves[1].stream(to + kCount / 2, columns - kCount / 2, part);
    }
  }
};

// A vector of columns, or fewer at the end of a row.
struct LaneColumns {
  int64_t first;
  int count;
  int part;  // the columns that are moved at once
};

template <int kVector, typename Item>
__device__ __forceinline__ void store_columns(Item* to, const Item (&items)[kVector], const LaneColumns& columns) {
  Neighbours<Item, kVector>::pack(items).stream(to, columns.count, columns.part);
}

template <int kVector, typename State, typename Narrow>
__device__ __forceinline__ void narrow_all(const State (&states)[kVector], Narrow (&results)[kVector]) {
#pragma unroll
  for (int k = 0; k < kVector; ++k) results[k] = narrow_to(states[k], Narrow{});
}

#if __CUDA_ARCH__ >= 800
// narrow_to tests whether a sum is NaN. Here, one branch serves all sums.
template <int kVector>
  requires(kVector % 2 == 0)
__device__ __forceinline__ void narrow_all(const float (&states)[kVector], BFloat16 (&results)[kVector]) {
  bool has_nan = false;
  uint32_t pairs[kVector / 2];
#pragma unroll
  for (int k = 0; k < kVector; k += 2) {
    has_nan |= !(states[k] <= states[k + 1] || states[k] > states[k + 1]);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pairs[k / 2]) : "f"(states[k + 1]), "f"(states[k]));
  }
  memcpy(results, pairs, sizeof(results));
  if (!has_nan) return;
#pragma unroll
  for (int k = 0; k < kVector; ++k) results[k] = narrow_to(states[k], BFloat16{});
}
#endif

}  // namespace mgpu::cuda::row_reducing
