// Warp shuffles of plain values of whole 32-bit words.
#pragma once

#include "cuda/block/partition.cuh"

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

// Chooses word by word if the size is a multiple of 4: a choice between whole structs would put them into memory.
template <typename Value>
__device__ __forceinline__ Value choose(bool first, const Value& a, const Value& b) {
  if constexpr (sizeof(Value) % 4 != 0) {
    return first ? a : b;
  } else {
    unsigned words[sizeof(Value) / 4], others[sizeof(Value) / 4];
    memcpy(words, &a, sizeof(Value));
    memcpy(others, &b, sizeof(Value));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Value) / 4); ++i) words[i] = first ? words[i] : others[i];
    Value chosen;
    memcpy(&chosen, words, sizeof(Value));
    return chosen;
  }
}

// The lowest `distance` lanes keep their own values.
template <typename Value>
__device__ __forceinline__ Value shuffle_up(const Value& value, int distance) {
  return shuffle_words(value, [=](unsigned word) { return __shfl_up_sync(0xffffffffu, word, distance); });
}

// The highest `distance` lanes keep their own values.
template <typename Value>
__device__ __forceinline__ Value shuffle_down(const Value& value, int distance) {
  return shuffle_words(value, [=](unsigned word) { return __shfl_down_sync(0xffffffffu, word, distance); });
}

template <typename Value>
__device__ __forceinline__ Value shuffle(const Value& value, int lane) {
  return shuffle_words(value, [=](unsigned word) { return __shfl_sync(0xffffffffu, word, lane); });
}

// The combination of all lanes' values in lane order, in every
// lane. For large values it is a loop, to save time of compilation.
template <typename Value, typename Combine>
__device__ __forceinline__ Value fold_warp(Value value, Combine combine) {
  constexpr int kUnroll = sizeof(Value) > 8 ? 1 : 5;
#pragma unroll kUnroll
  for (int distance = 1; distance < kWarp; distance *= 2) value = combine(value, shuffle_down(value, distance));
  return shuffle(value, 0);
}

}  // namespace mgpu::cuda
