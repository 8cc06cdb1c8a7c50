// A merge pipeline: one kernel finds the tiles, and the blocks of another take them one
// after the other. One warp of each block copies the next tile's keys to shared memory
// and the previous tile's results back, while the other warps, the workers, merge.
#pragma once

#include "algorithm/key_order.h"
#include "algorithm/neighbour_runs.h"
#include "cuda/block/copy_bulk.cuh"
#include "cuda/block/partition.cuh"
#include "cuda/block/serial_merge.cuh"
#include "cuda/ptx.cuh"
#include "ops/sorted_pair/plan.h"

namespace mgpu::cuda {

// A tile's keys in shared memory, not yet encoded.
template <typename Order, int kTile>
struct TileKeys {
  using Word = typename Order::Word;
  Word* buffer;
  Order order;
  MergeCursor runs;
  bool open;  // whether merges need no bounds, and keys can be compared by `open_order`
  IntegerOrder<Word> open_order;

  // If `diagonal` is past the tile's last item, the cursor is at the ends of both runs.
  __device__ MergeCursor cursor(int diagonal) const {
    if constexpr (!Order::kTotal) {
      if (open) return cursor(diagonal, open_order);
    }
    return cursor(diagonal, order);
  }

  // Advances over the next kItems items, and calls step(i, in_b, heads) before each is taken. Bit i of the result says
  // whether the i-th item is B's.
  template <int kItems, typename Step>
  __device__ unsigned merge_from(const MergeCursor& cursor, Step step) const {
    return open ? merge_heads<kItems, true>(cursor, open_order, step) : merge_heads<kItems, false>(cursor, order, step);
  }

 private:
  // Like shared_cursor, but a thread whose search is done
  // branches past the loads and the encoding of keys.
  template <typename AnyOrder>
  __device__ MergeCursor cursor(int diagonal, const AnyOrder& order) const {
    const int a_count = runs.a_end - runs.a;
    const int b_count = runs.b_end - runs.b;
    const int bounded = minimum(diagonal, a_count + b_count);
    const int low = maximum(0, bounded - b_count);
    int left = minimum(bounded, a_count) - low;
    uint32_t a = shared_address(buffer + runs.a + low);
    uint32_t b = shared_address(buffer + runs.b + bounded - low - 1);
    // `left` is at most half a tile.
#pragma unroll
    for (int stride = std::bit_floor(unsigned{kTile} / 2); stride > 0; stride /= 2) {
      constexpr int kBytes = sizeof(Word);
      bool before = left >= stride;
      if (before) {
        const Word a_key = shared_load<Word>(a + (stride - 1) * kBytes);
        const Word b_key = shared_load<Word>(b - (stride - 1) * kBytes);
        before = !order.less(order.encode(b_key), order.encode(a_key));
      }
      move_if(before, stride * kBytes, stride, a, b, left);
    }
    const int a_place = position_of(a, buffer);
    return {a_place, runs.a_end, runs.b + bounded - (a_place - runs.a), runs.b_end};
  }

  template <int kItems, bool kOpen, typename AnyOrder, typename Step>
  __device__ unsigned merge_heads(const MergeCursor& cursor, const AnyOrder& order, Step step) const {
    CodeHeads<AnyOrder, kOpen> heads(buffer, cursor, order);
    unsigned from_b = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool in_b = heads.next_is_b();
      step(i, in_b, heads);
      from_b |= in_b ? 1u << i : 0u;
      heads.take(in_b);
    }
    return from_b;
  }
};

constexpr int kPipelineThreads = kPipelineWorkers + kWarp;

// The ends of the live items of A and of B in the tile's row, or in its pair of runs.
struct PipelineTile : MergeTile {
  int64_t a_end;
  int64_t b_end;
};

// With kMayBeRuns, A and B may be one array of consecutive runs. Then a row has the tiles of each pair of runs,
// followed by empty tiles, so that all rows have the same number of tiles.
template <typename Order, bool kMayBeRuns = false>
struct PipelineTiles {
  MergeTiles<Order> tiles;
  int64_t width;
  int64_t row_count;  // tiles per row
  std::conditional_t<kMayBeRuns, RunSplits, MergeSplits> found;

  __host__ __device__ int64_t count() const { return tiles.pair.rows * row_count; }
  __device__ int64_t row_of(int64_t i) const { return tiles.pair.rows == 1 ? 0 : i / row_count; }
  // Where tile i begins in its row, if A does not consist of runs.
  __device__ int64_t begin_of(int64_t i, int64_t row) const { return (i - row * row_count) * width; }

  // Past the last tile, the size is negative.
  __device__ PipelineTile operator[](int64_t i) const {
    PipelineTile tile{};
    if (i >= count()) {
      tile.size = -1;
      return tile;
    }
    tile.row = row_of(i);
    if constexpr (kMayBeRuns) {
      if (found.run_tiles) {
        const auto [pair, slot] = found.run_tiles[i];
        tile.begin = slot;
        tile.size = minimum(width, pair.slots() - slot);
        set_items(tile, i, tiles_of(tile.row, pair), pair.slots());
        tile.begin += pair.begin;
        tile.a += pair.begin;
        tile.b += pair.middle;
        tile.a_end = pair.middle;
        tile.b_end = pair.end;
        return tile;
      }
    }
    tile.begin = begin_of(i, tile.row);
    tile.size = minimum(width, tiles.pair.row_slots() - tile.begin);
    set_items(tile, i, tiles, tiles.pair.row_slots());
    tile.a_end = tiles.pair.a.live(tile.row);
    tile.b_end = tiles.pair.b.live(tile.row);
    return tile;
  }

  // The pair of consecutive runs in which tile i begins, and
  // its slot there. Past the row's pairs, the pair is empty.
  __device__ RunTile run_tile(int64_t i, int64_t row, const NeighbourRuns& runs) const {
    RunTile tile{{}, begin_of(i, row)};
    runs.for_each_pair(row, tiles.pair.a.length, [&](const RunPair& pair) {
      const bool found = tile.slot < pair.slots();
      if (found) {
        tile.pair = pair;
      } else {
        tile.slot -= ceil_div(pair.slots(), width) * width;
      }
      return found;
    });
    if (tile.pair.slots() == 0) tile.slot = 0;
    return tile;
  }

  // The merge of a pair's two runs, as that of operands of one row.
  __device__ MergeTiles<Order> tiles_of(int64_t row, const RunPair& pair) const {
    using Word = typename Order::Word;
    const SortedRows& rows = tiles.pair.a;
    const Word* const keys = static_cast<const Word*>(rows.keys) + row * rows.stride;
    const SortedRows a{keys + pair.begin, pair.middle - pair.begin}, b{keys + pair.middle, pair.end - pair.middle};
    return {{1, a, b}, tiles.order};
  }

 private:
  // `slots` is the number of slots of the row or of its pair of runs.
  __device__ void set_items(PipelineTile& tile, int64_t i, const MergeTiles<Order>& merge_tiles, int64_t slots) const {
    const bool last = tile.begin + tile.size == slots;
    merge_tiles.set_items(tile, found.splits[i], last ? merge_tiles.pair.a.live(tile.row) : found.splits[i + 1]);
  }
};

// split(i, find) is A's split at the start of
// tile i. The lanes of a tile share the search.
constexpr int kSplitLanes = 4;
constexpr int kSplitThreads = 128;

template <typename Tiles, typename Split>
__device__ void split_each_tile(const Tiles& stream, Split split) {
  start_next_kernel();
  const int64_t thread = int64_t{blockIdx.x} * kSplitThreads + threadIdx.x;
  if (thread == 0) *stream.found.taken = 0;
  const int64_t i = minimum(thread / kSplitLanes, stream.count() - 1);
  const int64_t found =
      split(i, [](auto begin, auto end, auto before) { return warp_partition_point<kSplitLanes>(begin, end, before); });
  if (threadIdx.x % kSplitLanes == 0) stream.found.splits[i] = found;
}

template <typename Order, bool kMayBeRuns>
__global__ void __launch_bounds__(kSplitThreads)
    split_tiles(const __grid_constant__ PipelineTiles<Order, kMayBeRuns> stream) {
  split_each_tile(stream, [&](int64_t i, auto find) {
    const int64_t row = stream.row_of(i);
    return stream.tiles.likely_split(row, stream.begin_of(i, row), find);
  });
}

// Like split_tiles, for consecutive runs.
template <typename Order>
__global__ void __launch_bounds__(kSplitThreads)
    split_run_tiles(const __grid_constant__ PipelineTiles<Order, true> stream, const NeighbourRuns runs) {
  split_each_tile(stream, [&](int64_t i, auto find) {
    const int64_t row = stream.row_of(i);
    const RunTile tile = stream.run_tile(i, row, runs);
    if (threadIdx.x % kSplitLanes == 0) stream.found.run_tiles[i] = tile;
    return stream.tiles_of(row, tile.pair).likely_split(0, tile.slot, find);
  });
}

// Up to kItems items of A and of B after a tile are loaded with it. With kNeighbours,
// so is the item of A before the tile, if there is one (tile.a > 0), to runs.a - 1.
template <typename Order, int kItems, bool kNeighbours>
struct MergePipeline {
  using Word = typename Order::Word;
  static_assert(kItems % 2 == 1, "with an even number, lanes would access the same bank");
  static constexpr int kWorkers = kPipelineWorkers;
  static constexpr int kThreads = kPipelineThreads;
  static constexpr int kTile = kWorkers * kItems;
  static constexpr int kKeyBytes = pipeline_run_bytes(sizeof(Word), kItems);
  using Keys = TileKeys<Order, kTile>;

  struct Plan {
    MergeTile tile;    // its size is negative after the last tile
    MergeCursor runs;  // in the stage's shared memory
    int a_after;       // live items of A after the tile that are loaded too; `b_after`: of B
    int b_after;
  };
  struct Shared {
    CopyBarrier loaded[2];
    Plan plans[4];
  };
  static_assert(sizeof(Shared) <= kPipelineStaticBytes);

  __device__ static void sync_workers() { barrier_sync<kWorkersBarrier, kWorkers>(); }

  // Takes the block's tiles. For a tile, the copying warp calls load(plan, stage), whose result is a
  // function that copies data besides the keys. Then the workers call work(plan, keys, stage). The copying
  // warp calls store(plan, stage), whose result is a function that copies results back once the workers
  // are done. `stages` has room for two stages of stage_bytes, of which the keys take the first kKeyBytes.
  template <typename Tiles, typename Load, typename Work, typename Store>
  __device__ static void run(const Tiles& stream, Shared& shared, unsigned char* stages, int stage_bytes, Load load,
                             Work work, Store store) {
    if (threadIdx.x == 0) {
      for (CopyBarrier& barrier : shared.loaded) barrier.init();
    }
    __syncthreads();
    if (threadIdx.x >= kWorkers) {
      copy_tiles(stream, shared, stages, stage_bytes, load, store);
    } else {
      for (int count = 0;; ++count) {
        const int stage = count % 2;
        shared.loaded[stage].template wait<kLoadedBarrier, kThreads>(count);
        const Plan& plan = plan_of(shared, count);
        if (plan.tile.size < 0) break;
        unsigned char* const buffer = stages + stage * stage_bytes;
        work(plan, tile_keys(stream.tiles.order, plan, reinterpret_cast<Word*>(buffer)), buffer);
        fence_bulk_copies();
        barrier_arrive<kDoneBarrier, kThreads>(count);
      }
    }
  }

 private:
  // The workers have a named barrier. They and the copying
  // warp share two for each purpose, one per stage.
  static constexpr int kWorkersBarrier = 1;
  static constexpr int kDoneBarrier = 2;
  static constexpr int kLoadedBarrier = 4;

  // Three plans are in use: of the tile that is copied back, of the tile that is merged, and of the next one.
  __device__ static Plan& plan_of(Shared& shared, int count) { return shared.plans[count % 4]; }

  template <typename Tiles, typename Load, typename Store>
  __device__ static void copy_tiles(const Tiles& stream, Shared& shared, unsigned char* stages, int stage_bytes,
                                    Load load, Store store) {
    const bool first_lane = threadIdx.x % kWarp == 0;
    const SortedPair& pair = stream.tiles.pair;
    const auto finish = [&](int count) {
      const auto copies = store(plan_of(shared, count), stages + count % 2 * stage_bytes);
      barrier_sync<kDoneBarrier, kThreads>(count);
      copies();
      wait_bulk_stores();
      __syncwarp();
    };
    const auto take = [&] {
      return first_lane ? gridDim.x + static_cast<int64_t>(atomicAdd(stream.found.taken, 1ull)) : 0;
    };
    wait_for_last_kernel();
    int64_t taken = blockIdx.x;
    for (int count = 0;; ++count) {
      const Plan next = plan(pair, stream[__shfl_sync(~0u, taken, 0)]);
      if (first_lane) plan_of(shared, count) = next;
      __syncwarp();
      taken = take();
      unsigned char* const buffer = stages + count % 2 * stage_bytes;
      CopyBarrier& loaded = shared.loaded[count % 2];
      const bool more = next.tile.size >= 0;
      const KeyLoads keys(pair, next, reinterpret_cast<Word*>(buffer));
      const auto others = load(next, buffer);
      if (count >= 2) finish(count - 2);
      const uint32_t bytes = more ? keys.start(loaded) + others(loaded) : 0;
      loaded.template arrive<kLoadedBarrier, kThreads>(bytes, count);
      if (!more) {
        if (count >= 1) finish(count - 1);
        return;
      }
    }
  }

  __device__ static bool has_before(const MergeTile& tile) { return kNeighbours && tile.a > 0; }

  // Whether so many items of A and of B follow the tile that a thread needs no bounds, even if keys are not sorted.
  // With kNeighbours, an item of A must come before the tile too.
  __device__ static bool is_open(const Plan& plan) {
    return plan.a_after == kItems && plan.b_after == kItems && (!kNeighbours || plan.tile.a > 0);
  }

  // Floats are merged as integers if the first and the last
  // keys that threads may read allow it (is_integer_range).
  __device__ static Keys tile_keys(const Order& order, const Plan& plan, Word* buffer) {
    Keys keys{buffer, order, plan.runs, is_open(plan), {}};
    if constexpr (Order::kTotal) {
      keys.open_order = order;
    } else if (keys.open) {
      const Word first = buffer[plan.runs.a - has_before(plan.tile)];
      const auto code = [&](int position) { return order.encode(buffer[position]); };
      const Word lowest = minimum(order.encode(first), code(plan.runs.b));
      const Word highest = maximum(code(plan.runs.a_end + kItems - 1), code(plan.runs.b_end + kItems - 1));
      keys.open = order.is_integer_range(lowest, highest);
      keys.open_order = order.integer_order(first);
    }
    return keys;
  }

  __device__ static Plan plan(const SortedPair& pair, const PipelineTile& tile) {
    if (tile.size <= 0) return {tile, {}, 0, 0};
    const auto after = [](int64_t left) { return static_cast<int>(minimum<int64_t>(kItems, left)); };
    const int a_after = after(tile.a_end - (tile.a + tile.a_count));
    const int before = has_before(tile);
    const int a =
        before + place_in_line(static_cast<const Word*>(pair.a.keys), tile.row * pair.a.stride + tile.a - before);
    const int a_end = a + static_cast<int>(tile.a_count);
    const int b = round_up_to_line<Word>(a_end + a_after) +
                  place_in_line(static_cast<const Word*>(pair.b.keys), tile.row * pair.b.stride + tile.b);
    return {
        tile, {a, a_end, b, b + static_cast<int>(tile.b_count)}, a_after, after(tile.b_end - (tile.b + tile.b_count))};
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
