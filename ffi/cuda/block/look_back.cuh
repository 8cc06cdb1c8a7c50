// Single-pass prefixes over tiles: Merrill and Garland, "Single-pass Parallel Prefix Scan
// with Decoupled Look-back" (2016). Here the tree is fixed, so that the rounding of a float
// scan does not change from run to run: 32 tiles form a group, 32 groups form a group of
// the next level, and 32 of those form a span of 32768 tiles. A tile's prefix combines, at
// each level, the sums before its own in its group, and the prefix of the earlier spans.
//
//   __shared__ int64_t ticket;
//   const int64_t tile = take_ticket(&counter, ticket);        // counter and words zeroed before the launch
//   ... aggregate of the tile ...
//   if (warp == 0) prefix = look_back(words, tiles, tile, aggregate, identity, combine);   // all lanes of one warp
#pragma once

#include "algorithm/look_back.h"
#include "algorithm/operators.h"
#include "cuda/block/shuffle.cuh"
#include "cuda/ptx.cuh"

namespace mgpu::cuda {

__device__ __forceinline__ int64_t draw_ticket(uint64_t* counter) {
  return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ull));
}

// Tiles start in the order of the tickets, so a tile waits only for tiles that already run. Contains a barrier;
// `ticket` lies in shared memory.
__device__ __forceinline__ int64_t take_ticket(uint64_t* counter, int64_t& ticket) {
  if (threadIdx.x == 0) ticket = draw_ticket(counter);
  __syncthreads();
  return ticket;
}

// A value in device memory that one lane writes once and others wait for. Each 8-byte word holds 4 bytes of it and a
// mark that they are valid, so no fence is needed. `stride` is the distance between its words.
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

  __device__ __forceinline__ static void publish(uint64_t* words, const Value& value, unsigned mark = 1,
                                                 int stride = 1) {
    unsigned parts[kWords];
    memcpy(parts, &value, sizeof(Value));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint64_t word = uint64_t{mark} << 32 | parts[i];
      store_relaxed(words + i * stride, word);
    }
  }

  __device__ __forceinline__ static Words load(const uint64_t* words, int stride = 1) {
    Words loaded;
#pragma unroll
    for (int i = 0; i < kWords; ++i) load_relaxed(loaded.word[i], words + i * stride);
    return loaded;
  }

  // `loaded` is an earlier load, so that several slots can be loaded at once.
  __device__ __forceinline__ static Value await(const uint64_t* words, Words loaded, int stride = 1) {
    while (!loaded.ready()) loaded = load(words, stride);
    return value_of(loaded);
  }

  __device__ __forceinline__ static Value value_of(const Words& loaded) {
    unsigned parts[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) parts[i] = static_cast<unsigned>(loaded.word[i]);
    Value value;
    memcpy(&value, parts, sizeof(Value));
    return value;
  }
};

// A value and a flag, in as many words as the value alone: bit kBit of each word's mark is the flag.
template <typename Value_, typename Inner, int kBit>
struct FlaggedSlot {
  using Value = Value_;
  using Words = typename Slot<Inner>::Words;
  static constexpr int kWords = Slot<Inner>::kWords;

  __device__ __forceinline__ static void publish(uint64_t* words, const Value& value, unsigned mark = 1,
                                                 int stride = 1) {
    const auto& [inner, flag] = value;
    Slot<Inner>::publish(words, inner, flag ? mark | 1u << kBit : mark, stride);
  }
  __device__ __forceinline__ static Words load(const uint64_t* words, int stride = 1) {
    return Slot<Inner>::load(words, stride);
  }
  __device__ __forceinline__ static Value await(const uint64_t* words, Words loaded, int stride = 1) {
    while (!loaded.ready()) loaded = load(words, stride);
    return value_of(loaded);
  }
  __device__ __forceinline__ static Value value_of(const Words& loaded) {
    return {Slot<Inner>::value_of(loaded), static_cast<unsigned>(loaded.word[0] >> (32 + kBit)) & 1};
  }
};
template <typename State>
struct Slot<SinceRestart<State>> : FlaggedSlot<SinceRestart<State>, State, 1> {};
// The flag is `some`: whether the state has an item.
template <typename State>
  requires requires(State state) { state.some; }
struct Slot<State> : FlaggedSlot<State, decltype(State::item), 2> {};

template <typename Value>
__device__ __forceinline__ void publish_tile(uint64_t* words, int64_t tile, const Value& aggregate) {
  if (threadIdx.x % kWarp == 0) Slot<Value>::publish(words + tile * Slot<Value>::kWords, aggregate);
}

// The last tile of a group at `level`, which is above 0, publishes
// the group's sum. All lanes of one full warp call this for
// every tile. It may wait for the sums of this and earlier tiles.
template <typename Value, typename Combine>
__device__ void publish_group(uint64_t* words, int64_t tiles, int64_t tile, int level, Combine combine) {
  using Slots = Slot<Value>;
  constexpr int kFan = LookBackLayout::kFan;
  const LookBackLayout layout{tiles};
  int64_t index = tile;
  for (int l = 0; l < level; ++l) {
    if (index % kFan != kFan - 1) return;
    index /= kFan;
  }
  const int lane = threadIdx.x % kWarp;
  const uint64_t* const mine = words + (layout.begin(level - 1) + index * kFan + lane) * Slots::kWords;
  const Value sum = fold_warp(Slots::await(mine, Slots::load(mine)), combine);
  if (lane == 0) Slots::publish(words + (layout.begin(level) + index) * Slots::kWords, sum);
}

template <typename Value>
struct LoadedSums {
  typename Slot<Value>::Words words[LookBackLayout::kLevels];  // this lane's slot at each level
};

// The lane's slot at a level, if it is one of the `before` slots that precede the tile's in its group.
struct LookBackRead {
  int64_t slot;
  int before;
  __device__ __forceinline__ LookBackRead(int64_t tiles, int64_t tile, int level) {
    constexpr int kFan = LookBackLayout::kFan;
    static_assert(kFan == kWarp);
    int64_t index = tile;
    for (int l = 0; l < level; ++l) index /= kFan;
    before = static_cast<int>(index % kFan);
    slot = LookBackLayout{tiles}.begin(level) + index - before + threadIdx.x % kWarp;
  }
  __device__ __forceinline__ bool is_mine() const { return static_cast<int>(threadIdx.x % kWarp) < before; }
};

// Issues all loads at once, and waits for none.
template <typename Value>
__device__ __forceinline__ LoadedSums<Value> load_sums(const uint64_t* words, int64_t tiles, int64_t tile) {
  LoadedSums<Value> loaded;
#pragma unroll
  for (int level = 0; level < LookBackLayout::kLevels; ++level) {
    const LookBackRead read(tiles, tile, level);
    if (read.is_mine()) loaded.words[level] = Slot<Value>::load(words + read.slot * Slot<Value>::kWords);
  }
  return loaded;
}

// Returns the combination of the aggregates of all tiles before `tile`, in their order, to each lane of the
// one full warp that calls this. The last tile of a span also publishes the link for which the next span waits.
template <typename Value, typename Combine>
__device__ Value prefix_of(uint64_t* words, int64_t tiles, int64_t tile, const LoadedSums<Value>& loaded,
                           const Value& aggregate, const Value& identity, Combine combine) {
  using Slots = Slot<Value>;
  Value prefix = identity;
#pragma unroll
  for (int level = 0; level < LookBackLayout::kLevels; ++level) {
    const LookBackRead read(tiles, tile, level);
    if (read.before == 0) continue;
    const Value sum = read.is_mine() ? Slots::await(words + read.slot * Slots::kWords, loaded.words[level]) : identity;
    prefix = combine(fold_warp(sum, combine), prefix);
  }
  const int64_t link = tile / LookBackLayout::kSpan;
  uint64_t* const chain = words + (LookBackLayout{tiles}.begin(LookBackLayout::kLevels) + link) * Slots::kWords;
  if (link > 0) prefix = combine(Slots::await(chain, Slots::load(chain)), prefix);
  if ((tile + 1) % LookBackLayout::kSpan == 0 && threadIdx.x % kWarp == 0) {
    Slots::publish(chain + Slots::kWords, combine(prefix, aggregate));
  }
  return prefix;
}

// Publishes a tile's sum and those of groups that it ends, and returns the tile's prefix. Every tile calls it. With
// needed = false, a tile waits only if it is the last of a group, and may get the identity instead of its prefix.
template <typename Value, typename Combine>
__device__ Value look_back(uint64_t* words, int64_t tiles, int64_t tile, const Value& aggregate, const Value& identity,
                           Combine combine, bool needed = true) {
  publish_tile(words, tile, aggregate);
  for (int level = 1; level < LookBackLayout::kLevels; ++level) {
    publish_group<Value>(words, tiles, tile, level, combine);
  }
  const bool links = (tile + 1) % LookBackLayout::kSpan == 0;
  if (!needed && !links) return identity;
  return prefix_of(words, tiles, tile, load_sums<Value>(words, tiles, tile), aggregate, identity, combine);
}

}  // namespace mgpu::cuda
