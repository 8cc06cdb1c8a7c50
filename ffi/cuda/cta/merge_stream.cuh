// A block's share of a merge, tile by tile: a warp of its own searches for the tiles, copies their keys to shared
// memory and what becomes of them back, one tile ahead and one behind the other warps, who merge. So device memory is
// read without a pause, every key once, and only a share's first tile is searched for in all of A and B.
#pragma once

#include "algorithm/sorted_pair.h"
#include "cuda/cta/copy_bulk.cuh"
#include "cuda/cta/merge_heads.cuh"
#include "cuda/cta/partition.cuh"
#include "cuda/launch.cuh"

namespace mgpu::cuda {

// A tile's keys in shared memory, as their own bits. When all threads have read them, what leaves the tile may be put
// in their place.
template <typename Order, int kTile>
struct TileKeys {
  using Word = typename Order::Word;
  Word* buffer;
  Order order;
  MergeCursor runs;
  bool open;  // so many keys of A and of B follow that the merge of a thread needs no bounds

  __device__ bool less(Word a, Word b) const { return order.less(order.encode(a), order.encode(b)); }

  // Where a thread comes in, its first item being the tile's item `diagonal` or past the last one.
  __device__ MergeCursor cursor(int diagonal) const {
    const int a_count = runs.a_end - runs.a;
    const int b_count = runs.b_end - runs.b;
    const int bounded = minimum(diagonal, a_count + b_count);
    const int low = maximum(0, bounded - b_count);
    int left = minimum(bounded, a_count) - low;  // the answer is among so many items of A and the end
    uint32_t a = shared_address(buffer + runs.a + low);
    uint32_t b = shared_address(buffer + runs.b + bounded - low - 1);
    // `left` is at most half a tile.
#pragma unroll
    for (int stride = 1 << (ceil_log2(kTile / 2 + 1) - 1); stride > 0; stride /= 2) {
      constexpr int kBytes = sizeof(Word);
      bool before = left >= stride;
      if (before) {
        const Word a_key = shared_load<Word>(a + (stride - 1) * kBytes);
        const Word b_key = shared_load<Word>(b - (stride - 1) * kBytes);
        before = !less(b_key, a_key);
      }
      move_if(before, stride * kBytes, stride, a, b, left);
    }
    const int a_place = position_of(a, buffer);
    return {a_place, runs.a_end, runs.b + bounded - (a_place - runs.a), runs.b_end};
  }

  // Comes to the next kItems items: step(i, in_b, heads) for each, before it is taken. Bit i of the result says whether
  // the i-th is B's.
  template <int kItems, typename Step>
  __device__ unsigned merge_from(const MergeCursor& cursor, Step step) const {
    return open ? merge_heads<kItems, true>(cursor, step) : merge_heads<kItems, false>(cursor, step);
  }

 private:
  template <int kItems, bool kOpen, typename Step>
  __device__ unsigned merge_heads(const MergeCursor& cursor, Step step) const {
    CodeHeads<Order, kOpen> heads(buffer, cursor, order);
    unsigned from_b = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool in_b = heads.next_is_b(order);
      step(i, in_b, heads);
      from_b |= in_b ? 1u << i : 0u;
      heads.take(in_b, order);
    }
    return from_b;
  }
};

// The bytes of shared memory that `count` items in a number of runs take, each of which lies as in device memory.
template <typename Word>
constexpr int run_bytes(int count, int runs) {
  return round_up_to_line<char>(count * static_cast<int>(sizeof(Word))) + 2 * runs * kLineBytes;
}

// Threads that merge; a warp more finds tiles and one copies. Long tiles cost fewest hand-overs, two blocks of a
// multiprocessor hide each other's.
constexpr int kStreamWorkers = 448;
constexpr int kStreamThreads = kStreamWorkers + 2 * kWarp;
constexpr int kStreamBlocks = 2;

// The shape of a stream: on sm_90 its tiles are as long as two blocks' shared memory allows, before that as 64 KB do,
// which is all that sm_75 has. `kLarge` says which.
constexpr bool kLargeStreams = kHasBulkCopies;

template <bool kLarge, int kMost, typename StageBytes>
constexpr int stream_items(StageBytes stage_bytes) {
  constexpr int kLimit = kLarge ? 55 << 10 : 31 << 10;
  int items = kMost;
  while (items > 1 && stage_bytes(items) > kLimit) items -= 2;
  return items;
}

// The bytes of a tile's keys or of what lies as they do, with those after it; a thread reads past the end.
template <typename Word>
constexpr int stream_run_bytes(int items) {
  return run_bytes<Word>((kStreamWorkers + 3) * items + 2, 2);
}

// Launches a kernel of persistent blocks over `slots` slots. `Shape<kLarge>` gives kTile and kStageBytes.
template <template <bool> typename Shape, typename Kernel, typename... Arguments>
void launch_stream(const Call& call, cudaStream_t stream, int64_t slots, Kernel kernel, const Arguments&... arguments) {
  cudaFuncAttributes attributes;
  check(call, cudaFuncGetAttributes(&attributes, kernel));
  const bool large = attributes.ptxVersion >= 90;  // as the kernel was compiled
  const int tile = large ? Shape<true>::kTile : Shape<false>::kTile;
  const int bytes = 2 * (large ? Shape<true>::kStageBytes : Shape<false>::kStageBytes);
  allow_shared(call, kernel, bytes);
  const int blocks = resident_blocks(call, kernel, kStreamThreads, bytes, ceil_div<int64_t>(slots, tile));
  kernel<<<blocks, kStreamThreads, bytes, stream>>>(arguments...);
  check_launch(call);
}

// With kNeighbours, the item of A before a tile is loaded too, at runs.a - 1, where it exists: tile.a > 0. Up to kItems
// items of A and of B after it always are.
template <typename Order, int kItems, bool kNeighbours>
struct MergeStream {
  using Word = typename Order::Word;
  static_assert(kItems % 2 == 1, "an even number would have lanes meet in the same bank");
  static constexpr int kWorkers = kStreamWorkers;
  static constexpr int kThreads = kStreamThreads;
  static constexpr int kTile = kWorkers * kItems;
  static constexpr int kKeyBytes = stream_run_bytes<Word>(kItems);
  using Keys = TileKeys<Order, kTile>;

  struct Plan {
    MergeTile tile;    // empty after the last one
    MergeCursor runs;  // in the stage's shared memory
    int a_after;       // live items of A, and of B, that follow and are loaded too
    int b_after;
  };
  static constexpr int kBatch = 8;  // tiles that are found at once
  static constexpr int kLanes = kWarp / kBatch;
  struct Shared {
    CopyBarrier loaded[2];
    Plan plans[2 * kBatch];
    int64_t splits[kBatch + 1];  // at the edges of the first batch's tiles
  };

  __device__ static void sync_workers() { barrier_sync<kWorkersBarrier, kWorkers>(); }

  // For each tile of the block's share of the slots: load(plan, stage) and store(plan, stage) by one warp, which give
  // what is copied beside the keys and what is copied back, each as a function that starts it; work(plan, keys, stage)
  // by the workers in between. `stages` are 2 of stage_bytes, of which the keys take the first kKeyBytes.
  template <typename Load, typename Work, typename Store>
  __device__ static void run(const MergeTiles<Order>& tiles, Shared& shared, unsigned char* stages, int stage_bytes,
                             Load load, Work work, Store store) {
    constexpr int64_t kGrain = 128;  // a share's output starts on a cache line
    const int64_t slots = tiles.pair.slots();
    const int64_t share = ceil_div(ceil_div<int64_t>(slots, gridDim.x), kGrain) * kGrain;
    const int64_t begin = blockIdx.x * share;
    const int64_t end = minimum(slots, begin + share);
    if (begin >= end) return;

    const int warp = threadIdx.x / kWarp;
    const MergeTile first = tiles.slots_from(begin, end, kTile);
    if (warp <= kBatch) {  // the edges of the first tiles, all at the same time
      MergeTile tile = first;
      for (int i = 1; i < warp; ++i) tile = tiles.slots_after(tile, end, kTile);
      if (tile.size > 0) {
        const int64_t split =
            tiles.split(tile.row, tile.begin + (warp == 0 ? 0 : tile.size),
                        [](auto begin, auto end, auto before) { return warp_partition_point(begin, end, before); });
        if (threadIdx.x % kWarp == 0) shared.splits[warp] = split;
      }
    }
    if (threadIdx.x < 2) shared.loaded[threadIdx.x].init();
    __syncthreads();
    if (warp == kWorkers / kWarp) {
      find_tiles(tiles, first, end, shared);
    } else if (warp > kWorkers / kWarp) {
      copy_tiles(tiles.pair, shared, stages, stage_bytes, load, store);
    } else {
      for (int count = 0;; ++count) {
        const int stage = count % 2;
        shared.loaded[stage].template wait<kLoadedBarrier, kCopyThreads>(count);
        const Plan& plan = plan_of(shared, count);
        if (plan.tile.size <= 0) break;
        unsigned char* const buffer = stages + stage * stage_bytes;
        work(plan, Keys{reinterpret_cast<Word*>(buffer), tiles.order, plan.runs, is_open(plan)}, buffer);
        fence_bulk_copies();
        barrier_arrive<kDoneBarrier, kCopyThreads>(count);
      }
    }
  }

 private:
  // Named barriers: of the workers; of the finding and the copying warp, by batches; of the copying warp and the
  // workers, by stages.
  static constexpr int kFindThreads = 2 * kWarp;
  static constexpr int kCopyThreads = kWorkers + kWarp;
  static constexpr int kWorkersBarrier = 1;
  static constexpr int kFoundBarrier = 2;
  static constexpr int kTakenBarrier = 4;
  static constexpr int kDoneBarrier = 6;
  static constexpr int kLoadedBarrier = 8;

  __device__ static Plan& plan_of(Shared& shared, int count) { return shared.plans[count % (2 * kBatch)]; }

  // Finds all tiles from `first` on, kBatch at once, each by a few lanes: a search by the whole warp for one tile takes
  // half as long as this for eight, and the workers would wait for it.
  __device__ static void find_tiles(const MergeTiles<Order>& tiles, const MergeTile& first, int64_t end,
                                    Shared& shared) {
    const int group = threadIdx.x % kWarp / kLanes;
    MergeTile next = first;
    int64_t a = shared.splits[0];  // items of A before it in its row
    for (int batch = 0;; ++batch) {
      if (batch >= 2) barrier_sync<kTakenBarrier, kFindThreads>(batch);
      const MergeTile start = next;
      MergeTile tile = next;
#pragma unroll 1
      for (int i = 0; i < kBatch; ++i) {
        if (i == group) tile = next;
        next = tiles.slots_after(next, end, kTile);
      }
      int64_t split = shared.splits[group + 1];
      if (batch > 0) {
        const bool is_tile = tile.size > 0;
        const bool same_row = tile.row == start.row;
        const int64_t slot = tile.begin + tile.size;
        const int64_t low = same_row ? a : 0;
        const int64_t high = is_tile ? low + slot - (same_row ? start.begin : 0) : low;
        split = tiles.split(is_tile ? tile.row : first.row, slot, low, high, [](auto begin, auto end, auto before) {
          return warp_partition_point<kLanes>(begin, end, before);
        });
      }
#pragma unroll 1
      for (int i = 0; i < kBatch; ++i) {  // one after the other, so that they are a whole even where keys are unsorted
        if (i == group && tile.size > 0) {
          tiles.set_items(tile, tile.begin == 0 ? 0 : a, split);
          a = tile.a + tile.a_count;
        }
        a = __shfl_sync(~0u, a, i * kLanes);
      }
      if (next.begin == 0) a = 0;
      if (threadIdx.x % kLanes == 0) shared.plans[batch % 2 * kBatch + group] = plan(tiles.pair, tile);
      barrier_arrive<kFoundBarrier, kFindThreads>(batch);
      if (__any_sync(~0u, tile.size <= 0)) return;
    }
  }

  // Copies each tile's keys to its stage, and what became of them back.
  template <typename Load, typename Store>
  __device__ static void copy_tiles(const SortedPair& pair, Shared& shared, unsigned char* stages, int stage_bytes,
                                    Load load, Store store) {
    const auto finish = [&](int count) {
      const int stage = count % 2;
      const auto copies = store(plan_of(shared, count), stages + stage * stage_bytes);
      barrier_sync<kDoneBarrier, kCopyThreads>(count);
      copies();
      wait_bulk_stores();
      __syncwarp();
      if (count % kBatch == kBatch - 1) barrier_arrive<kTakenBarrier, kFindThreads>(count / kBatch);
    };
    for (int count = 0;; ++count) {
      if (count % kBatch == 0) barrier_sync<kFoundBarrier, kFindThreads>(count / kBatch);
      const int stage = count % 2;
      unsigned char* const buffer = stages + stage * stage_bytes;
      const Plan& plan = plan_of(shared, count);
      const bool more = plan.tile.size > 0;
      const KeyLoads keys(pair, plan, reinterpret_cast<Word*>(buffer));
      const auto others = load(plan, buffer);
      if (count >= 2) finish(count - 2);
      const uint32_t bytes = more ? keys.start(shared.loaded[stage]) + others(shared.loaded[stage]) : 0;
      shared.loaded[stage].template arrive<kLoadedBarrier, kCopyThreads>(bytes, count);
      if (!more) {
        return finish(count - 1);
      }
    }
  }

  __device__ static bool has_before(const MergeTile& tile) { return kNeighbours && tile.a > 0; }

  // Whether so many items of A and of B follow that a thread needs no bounds: it stays among A's and B's keys even
  // where they are not sorted. With kNeighbours, an item of A comes before too.
  __device__ static bool is_open(const Plan& plan) {
    return plan.a_after == kItems && plan.b_after == kItems && (!kNeighbours || plan.tile.a > 0);
  }

  __device__ static Plan plan(const SortedPair& pair, const MergeTile& tile) {
    if (tile.size <= 0) return {tile, {}, 0, 0};
    const auto after = [](const SortedRows& side, int64_t row, int64_t end) {
      return static_cast<int>(minimum<int64_t>(kItems, side.live(row) - end));
    };
    const int a_after = after(pair.a, tile.row, tile.a + tile.a_count);
    const int before = has_before(tile);
    const int a =
        before + place_in_line(static_cast<const Word*>(pair.a.keys), tile.row * pair.a.stride + tile.a - before);
    const int a_end = a + static_cast<int>(tile.a_count);
    const int b = round_up_to_line<Word>(a_end + a_after) +
                  place_in_line(static_cast<const Word*>(pair.b.keys), tile.row * pair.b.stride + tile.b);
    return {tile,
            {a, a_end, b, b + static_cast<int>(tile.b_count)},
            a_after,
            after(pair.b, tile.row, tile.b + tile.b_count)};
  }

  struct KeyLoads {
    BulkLoad<Word> a, b;

    __device__ KeyLoads(const SortedPair& pair, const Plan& plan, Word* buffer)
        : a(static_cast<const Word*>(pair.a.keys), pair.a.stored,
            plan.tile.row * pair.a.stride + plan.tile.a - has_before(plan.tile),
            static_cast<int>(plan.tile.a_count) + has_before(plan.tile) + plan.a_after, buffer),
          b(static_cast<const Word*>(pair.b.keys), pair.b.stored, plan.tile.row * pair.b.stride + plan.tile.b,
            static_cast<int>(plan.tile.b_count) + plan.b_after,
            buffer + round_up_to_line<Word>(plan.runs.a_end + plan.a_after)) {}
    __device__ uint32_t start(CopyBarrier& barrier) const { return a.start(barrier) + b.start(barrier); }
  };
};

}  // namespace mgpu::cuda
