// Single-pass prefixes over tiles: Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back"
// (2016), with one change. There a tile adds up whatever mixture of sums and prefixes its predecessors happen to have
// published, so the rounding of a float scan changes from run to run. Here the tree is fixed: a tile adds the sums of
// the tiles before it in its group of 32, of the groups before its own in its block of 32 groups, and the prefix of the
// block. Tile sums depend on no other tile, so only one tile in 1024 is a step of a serial chain.
//
//   __shared__ int64_t ticket;
//   const int64_t tile = take_ticket(&counter, ticket);        // counter and words zeroed before the launch
//   ... aggregate of the tile ...
//   if (warp == 0) prefix = look_back(words, tiles, tile, aggregate, identity, combine);   // all lanes of one warp
#pragma once

#include "algorithm/look_back.h"
#include "cuda/cta/shuffle.cuh"

namespace mgpu::cuda {

__device__ __forceinline__ int64_t draw_ticket(uint64_t* counter) {
  return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ull));
}

// The next tile for this block: tiles start in the order of the tickets, so a tile only ever waits for tiles that run
// already, whatever order the hardware starts blocks in. Contains a barrier; `ticket` lies in shared memory.
__device__ __forceinline__ int64_t take_ticket(uint64_t* counter, int64_t& ticket) {
  if (threadIdx.x == 0) ticket = draw_ticket(counter);
  __syncthreads();
  return ticket;
}

// A value in memory that one lane writes once and others wait for. A word holds 4 bytes of it and a mark that they are
// there, in one 8-byte store, so no fence is needed.
template <typename Value>
struct Slot {
  static_assert(sizeof(Value) % 4 == 0, "pad the value to a multiple of 4 bytes");
  static constexpr int kWords = sizeof(Value) / 4;

  struct Words {
    uint64_t word[kWords];
    __device__ __forceinline__ bool ready() const {
      bool ready = true;
#pragma unroll
      for (int i = 0; i < kWords; ++i) ready = ready && (word[i] >> 32) != 0;
      return ready;
    }
  };

  __device__ __forceinline__ static void publish(uint64_t* words, const Value& value) {
    unsigned parts[kWords];
    memcpy(parts, &value, sizeof(Value));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint64_t word = (uint64_t{1} << 32) | parts[i];
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + i), "l"(word) : "memory");
    }
  }

  __device__ __forceinline__ static Words load(const uint64_t* words) {
    Words loaded;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(loaded.word[i]) : "l"(words + i) : "memory");
    }
    return loaded;
  }

  // The value, once it is there. `loaded` is a load issued earlier, so that several slots can be asked for at once.
  __device__ __forceinline__ static Value await(const uint64_t* words, Words loaded) {
    while (!loaded.ready()) loaded = load(words);
    unsigned parts[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) parts[i] = static_cast<unsigned>(loaded.word[i]);
    Value value;
    memcpy(&value, parts, sizeof(Value));
    return value;
  }
};

// The combination of the aggregates of all tiles before `tile`, in every lane of the one full warp that calls this.
// Publishes `aggregate` for later tiles, so every tile has to call it; one that has no use for its prefix says so and
// gets the identity, without waiting. `combine` need not commute.
template <typename Value, typename Combine>
__device__ Value look_back(uint64_t* words, int64_t tiles, int64_t tile, const Value& aggregate, const Value& identity,
                           Combine combine, bool needed = true) {
  constexpr int64_t kFan = LookBackLayout::kFan;
  static_assert(kFan == kWarp);
  using Slots = Slot<Value>;
  const int lane = threadIdx.x % kWarp;
  const int64_t group = tile / kFan;
  const int64_t block = group / kFan;
  const int in_group = static_cast<int>(tile % kFan);
  const int in_block = static_cast<int>(group % kFan);
  const bool ends_group = in_group == kFan - 1;
  const bool ends_block = ends_group && in_block == kFan - 1;
  uint64_t* const tile_words = words;
  uint64_t* const group_words = tile_words + tiles * Slots::kWords;
  uint64_t* const block_words = group_words + LookBackLayout{tiles}.groups() * Slots::kWords;

  if (lane == 0) Slots::publish(tile_words + tile * Slots::kWords, aggregate);
  if (!needed && !ends_group) return identity;

  // All loads are in flight before the first wait: most of the time all but the nearest tiles are ready.
  const bool reads_tile = lane < in_group;
  const bool reads_group = lane < in_block;
  const uint64_t* const my_tile = tile_words + (group * kFan + lane) * Slots::kWords;
  const uint64_t* const my_group = group_words + (block * kFan + lane) * Slots::kWords;
  const uint64_t* const my_block = block_words + block * Slots::kWords;
  typename Slots::Words tile_load, group_load, block_load;
  if (reads_tile) tile_load = Slots::load(my_tile);
  if (reads_group) group_load = Slots::load(my_group);
  if (block > 0) block_load = Slots::load(my_block);

  Value prefix = fold_warp(reads_tile ? Slots::await(my_tile, tile_load) : identity, combine);
  if (ends_group && lane == 0) {
    Slots::publish(group_words + group * Slots::kWords, combine(prefix, aggregate));
  }
  if (!needed && !ends_block) return identity;
  if (in_block > 0) {
    prefix = combine(fold_warp(reads_group ? Slots::await(my_group, group_load) : identity, combine), prefix);
  }
  if (block > 0) prefix = combine(Slots::await(my_block, block_load), prefix);
  if (ends_block && lane == 0) {
    Slots::publish(block_words + (block + 1) * Slots::kWords, combine(prefix, aggregate));
  }
  return prefix;
}

}  // namespace mgpu::cuda
