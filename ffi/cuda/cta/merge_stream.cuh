// A block's share of a merge, tile by tile: while one tile is worked on, the keys of the next are on their way to
// shared memory and the end of the one after is being searched for. So device memory is read without a pause, every key
// once, and only a share's first tile is searched for in all of A and B.
#pragma once

#include "algorithm/sorted_pair.h"
#include "cuda/cta/copy_run.cuh"
#include "cuda/cta/merge_heads.cuh"
#include "cuda/cta/partition.cuh"

namespace mgpu::cuda {

// A tile's keys in shared memory, as their own bits. When all threads have read them, what leaves the tile may be put
// in their place.
template <typename Order>
struct TileKeys {
  using Word = typename Order::Word;
  Word* buffer;
  Order order;
  MergeCursor runs;

  __device__ bool less(Word a, Word b) const { return order.less(order.encode(a), order.encode(b)); }

  // Where a thread comes in, its first item being the tile's item `diagonal` or past the last one.
  __device__ MergeCursor cursor(int diagonal) const {
    const int live = runs.a_end - runs.a + runs.b_end - runs.b;
    return merge_cursor(
        runs, minimum(diagonal, live), [&](int i) { return buffer[i]; }, [&](Word a, Word b) { return less(a, b); });
  }

  // Comes to the next kItems items: step(i, in_b, heads) for each, before it is taken. Bit i of the result says whether
  // the i-th is B's.
  template <int kItems, typename Step>
  __device__ unsigned merge_from(const MergeCursor& cursor, Step step) const {
    MergeHeads<Word> heads(buffer, cursor);
    unsigned from_b = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool in_b = heads.next_is_b([&](Word a, Word b) { return less(a, b); });
      step(i, in_b, heads);
      from_b |= in_b ? 1u << i : 0u;
      heads.take(in_b);
    }
    return from_b;
  }
};

// With kNeighbours, the item of A before a tile and the item of B after it are loaded too, at runs.a - 1 and
// runs.b_end, where they exist: tile.a > 0, tile.b_left.
template <typename Order, int kThreads, int kItems, bool kNeighbours>
struct MergeStream {
  using Word = typename Order::Word;
  static_assert(kThreads >= 2 * kWarp && kItems % 2 == 1, "an even number would have lanes meet in the same bank");
  static constexpr int kTile = kThreads * kItems;
  // A tile's keys, what unaligned runs and neighbours add at each of four ends, what a thread reads past the end; at
  // least two bytes a slot for what leaves the tile.
  static constexpr int kBufferBytes =
      (maximum<int>(kTile * sizeof(Word) + 4 * kChunkBytes + (kItems + 3) * sizeof(Word), 2 * kTile) + kChunkBytes -
       1) /
      kChunkBytes * kChunkBytes;

  struct Shared {
    MergeTile tiles[3];
    int64_t splits[2];
  };

  // Calls start(tile), which may start copies to shared memory, and then work(tile, keys), with a barrier between them,
  // for all tiles of the block's share of the slots. The copies of `start` are one group ahead of the last one. `work`
  // does not touch the keys' buffer again when all threads have left it. `buffers` are two of kBufferBytes.
  template <typename Start, typename Work>
  __device__ static void run(const MergeTiles<Order>& tiles, Shared& shared, unsigned char* buffers, Start start,
                             Work work) {
    constexpr int64_t kGrain = 128;  // a share's output starts on a cache line
    const int64_t slots = tiles.pair.slots();
    const int64_t share = ceil_div(ceil_div<int64_t>(slots, gridDim.x), kGrain) * kGrain;
    const int64_t begin = blockIdx.x * share;
    const int64_t end = minimum(slots, begin + share);
    if (begin >= end) return;

    const auto find = [](auto begin, auto end, auto before) { return warp_partition_point(begin, end, before); };
    const int warp = threadIdx.x / kWarp;
    const bool first_lane = threadIdx.x % kWarp == 0;
    if (warp < 2) {  // the two ends of the first tile at the same time
      MergeTile first = tiles.slots_from(begin, end, kTile);
      const int64_t split = tiles.split(first.row, first.begin + (warp == 0 ? 0 : first.size), find);
      if (first_lane) shared.splits[warp] = split;
      if (threadIdx.x == 0) shared.tiles[0] = first;
    }
    __syncthreads();
    if (threadIdx.x == 0) tiles.set_items(shared.tiles[0], shared.splits[0], shared.splits[1]);
    __syncthreads();
    load(tiles, shared.tiles[0], reinterpret_cast<Word*>(buffers));
    copy_commit();
    const auto find_after = [&](int tile, int after) {
      if (warp != 0) return;
      const MergeTile found = tiles.tile_after(shared.tiles[tile], end, kTile, find);
      if (first_lane) shared.tiles[after] = found;
    };
    find_after(0, 1);

    for (int current = 0, buffer = 0;; buffer ^= 1) {
      const int next = current == 2 ? 0 : current + 1;
      copy_wait<0>();
      __syncthreads();
      const MergeTile& tile = shared.tiles[current];
      const bool more = shared.tiles[next].size > 0;
      start(tile);
      copy_commit();
      if (more) load(tiles, shared.tiles[next], reinterpret_cast<Word*>(buffers + (buffer ^ 1) * kBufferBytes));
      copy_commit();
      if (more) find_after(next, next == 2 ? 0 : next + 1);
      work(tile, TileKeys<Order>{reinterpret_cast<Word*>(buffers + buffer * kBufferBytes), tiles.order,
                                 place(tiles.pair, tile)});
      if (!more) return;
      current = next;
    }
  }

 private:
  __device__ static bool has_before(const MergeTile& tile) { return kNeighbours && tile.a > 0; }

  __device__ static MergeCursor place(const SortedPair& pair, const MergeTile& tile) {
    const int before = has_before(tile);
    const int a =
        before + place_in_chunk(static_cast<const Word*>(pair.a.keys), tile.row * pair.a.stride + tile.a - before);
    const int a_end = a + static_cast<int>(tile.a_count);
    const int b = round_up_to_chunk<Word>(a_end) +
                  place_in_chunk(static_cast<const Word*>(pair.b.keys), tile.row * pair.b.stride + tile.b);
    return {a, a_end, b, b + static_cast<int>(tile.b_count)};
  }

  __device__ static void load(const MergeTiles<Order>& tiles, const MergeTile& tile, Word* buffer) {
    const SortedPair& pair = tiles.pair;
    const int before = has_before(tile);
    const int after = kNeighbours && tile.b_left;
    start_copy<kThreads>(static_cast<const Word*>(pair.a.keys), pair.a.stored,
                         tile.row * pair.a.stride + tile.a - before, static_cast<int>(tile.a_count) + before, buffer);
    start_copy<kThreads>(static_cast<const Word*>(pair.b.keys), pair.b.stored, tile.row * pair.b.stride + tile.b,
                         static_cast<int>(tile.b_count) + after,
                         buffer + round_up_to_chunk<Word>(place(pair, tile).a_end));
  }
};

}  // namespace mgpu::cuda
