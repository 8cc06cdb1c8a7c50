// Warp shuffles of any plain value: a struct travels as 32-bit words.
#pragma once

#include "cuda/cta/partition.cuh"

namespace mgpu::cuda {

template <typename Value, typename Move>
__device__ __forceinline__ Value shuffle_words(const Value& value, Move move) {
  static_assert(sizeof(Value) % 4 == 0);
  unsigned words[sizeof(Value) / 4];
  memcpy(words, &value, sizeof(Value));
#pragma unroll
  for (unsigned& word : words) word = move(word);
  Value moved;
  memcpy(&moved, words, sizeof(Value));
  return moved;
}

// The value of the lane `distance` below; of no meaning in the lowest lanes.
template <typename Value>
__device__ __forceinline__ Value shuffle_up(const Value& value, int distance) {
  return shuffle_words(value, [=](unsigned word) { return __shfl_up_sync(0xffffffffu, word, distance); });
}

// The value of the lane `distance` above; of no meaning in the highest lanes.
template <typename Value>
__device__ __forceinline__ Value shuffle_down(const Value& value, int distance) {
  return shuffle_words(value, [=](unsigned word) { return __shfl_down_sync(0xffffffffu, word, distance); });
}

template <typename Value>
__device__ __forceinline__ Value shuffle(const Value& value, int lane) {
  return shuffle_words(value, [=](unsigned word) { return __shfl_sync(0xffffffffu, word, lane); });
}

// The values of all lanes combined in lane order, in every lane.
template <typename Value, typename Combine>
__device__ __forceinline__ Value fold_warp(Value value, Combine combine) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) value = combine(value, shuffle_down(value, distance));
  return shuffle(value, 0);
}

}  // namespace mgpu::cuda
