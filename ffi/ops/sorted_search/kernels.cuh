// The kernels in this file, apart from search_needles, run the pipeline of a merge: an item's
// place in the merge, minus its place in its own operand, is its place in the other operand.
#pragma once

#include "cuda/block/shuffle.cuh"
#include "ops/sorted_pair/merge_pipeline.cuh"
#include "ops/sorted_search/plan.h"

namespace mgpu::cuda::searching {

constexpr int kSearchThreads = 256;  // the threads of the kernel that makes one binary search per needle

// An entry is, for an item of one side, the number of the other side's items before it: `others`
// for the first. `mine` is a bitmap of the side's items among the thread's next kCount items.
template <int kCount>
__device__ void put_entries(int32_t* entries, unsigned mine, int32_t others) {
  uint32_t to = shared_address(entries);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    put_or_count(mine & 1u << i, to, others);
  }
}

template <int kCount>
__device__ void put_matches(int32_t* a_entries, bool* a_match, unsigned from_a, int32_t a_before, int32_t* b_entries,
                            bool* b_match, unsigned from_b, int32_t b_before, unsigned matches) {
  uint32_t a_to = shared_address(a_entries), a_match_to = shared_address(a_match);
  uint32_t b_to = shared_address(b_entries), b_match_to = shared_address(b_match);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    put_match(from_a & 1u << i, a_to, a_match_to, a_before, from_b & 1u << i, b_to, b_match_to, b_before,
              (matches >> i) & 1u);
  }
}

template <int kWorkers, typename Store>
__device__ void for_each_dead(Range<int64_t> dead, Store store) {
  for (int64_t i = dead.begin + threadIdx.x; i < dead.end; i += kWorkers) store(i);
}

template <int kItems>
__device__ unsigned live_items(const MergeTile& tile, int diagonal) {
  const int count = clamp(static_cast<int>(tile.live()) - diagonal, 0, kItems);
  return (1u << count) - 1;
}

template <typename Order, bool kLargeStages>
__global__ void __launch_bounds__(kPipelineThreads, kPipelineBlocks)
    search_tiles(const __grid_constant__ PipelineTiles<Order> stream, IndexResult positions, bool needles_are_b) {
  extern __shared__ __align__(kLineBytes) unsigned char stages[];
  constexpr PipelineShape kShape = search_shape(sizeof(typename Order::Word), false, kLargeStages);
  if constexpr (kLargeStages && !may_grant(kShape.wanted_bytes())) return __trap();
  constexpr int kCount = kShape.items;
  using S = MergePipeline<Order, kCount, false>;
  __shared__ typename S::Shared shared;
  const MergeTiles<Order>& tiles = stream.tiles;
  const SortedPair& pair = tiles.pair;
  const bool bulk = kHasBulkCopies && !positions.wide;
  int32_t* const narrow = static_cast<int32_t*>(positions.data);
  const auto first = [&](const MergeTile& tile) {
    return needles_are_b ? tile.row * pair.b.length + tile.b : tile.row * pair.a.length + tile.a;
  };
  const auto count = [&](const MergeTile& tile) {
    return static_cast<int>(needles_are_b ? tile.b_count : tile.a_count);
  };

  const auto work = [&](const typename S::Plan& plan, const typename S::Keys& keys, unsigned char* stage) {
    const MergeTile& tile = plan.tile;
    const int diagonal = threadIdx.x * kCount;
    const MergeCursor cursor = keys.cursor(diagonal);
    const unsigned from_b = keys.template merge_from<kCount>(cursor, [](auto...) {});
    S::sync_workers();
    const int a = cursor.a - keys.runs.a;
    const int b = cursor.b - keys.runs.b;
    const unsigned mine = (needles_are_b ? from_b : ~from_b) & live_items<kCount>(tile, diagonal);
    const int64_t base = needles_are_b ? tile.a : tile.b;
    int32_t* const entries = reinterpret_cast<int32_t*>(stage) + (bulk ? place_in_line(narrow, first(tile)) : 0);
    put_entries<kCount>(entries + (needles_are_b ? b : a), mine,
                        (needles_are_b ? a : b) + (bulk ? static_cast<int32_t>(base) : 0));
    if (!bulk) {
      S::sync_workers();
      for (int i = threadIdx.x; i < count(tile); i += kPipelineWorkers)
        positions.set(first(tile) + i, base + entries[i]);
    }
    if (tile.dead() > 0) {
      const int64_t row = tile.row * (needles_are_b ? pair.b.length : pair.a.length);
      for_each_dead<kPipelineWorkers>(needles_are_b ? tiles.b_dead(tile) : tiles.a_dead(tile),
                                      [&](int64_t i) { positions.set(row + i, -1); });
    }
  };

  const auto store = [&](const typename S::Plan& plan, unsigned char* stage) {
    const MergeTile& tile = plan.tile;
    const BulkStore<int32_t> entries(narrow, first(tile), bulk ? count(tile) : 0,
                                     reinterpret_cast<const int32_t*>(stage));
    return [=] { entries.start(); };
  };

  S::run(
      stream, shared, stages, kShape.stage_bytes,
      [](const typename S::Plan&, unsigned char*) { return [](CopyBarrier&) { return 0u; }; }, work, store);
}

template <typename Order>
__global__ void __launch_bounds__(kSearchThreads)
    search_needles(const __grid_constant__ SortedSearchOperands operands, Order order) {
  using Word = typename Order::Word;
  const SortedRows& needles = operands.needles();
  const SortedRows& haystack = operands.haystack();
  const int64_t slot = blockIdx.x * int64_t{kSearchThreads} + threadIdx.x;
  if (slot >= operands.pair.rows * needles.length) return;
  const int64_t row = operands.pair.rows == 1 ? 0 : slot / needles.length;
  operands.positions.set(slot, operands.search(order, row, slot - row * needles.length,
                                               static_cast<const Word*>(needles.keys) + row * needles.stride,
                                               static_cast<const Word*>(haystack.keys) + row * haystack.stride));
}

template <typename Order>
struct MatchProblem {
  PipelineTiles<Order> stream;
  SortedMatchOperands::Side a;
  SortedMatchOperands::Side b;
};

// If keys are not sorted, tiles can share items: a thread that takes the count past the operand's length clamps it.
__device__ void add_to_count(const IndexResult& counts, int64_t row, int number, int64_t length) {
  number = fold_warp(number, [](int a, int b) { return a + b; });
  if (threadIdx.x % kWarp != 0 || number == 0) return;
  const auto add = [&](auto* count, auto added, auto limit) {
    if (atomicAdd(count, added) + added > limit) atomicMin(count, limit);
  };
  using Wide = unsigned long long;
  using Narrow = unsigned;
  if (counts.wide) {
    add(static_cast<Wide*>(counts.data) + row, static_cast<Wide>(number), static_cast<Wide>(length));
  } else {
    add(static_cast<Narrow*>(counts.data) + row, static_cast<Narrow>(number), static_cast<Narrow>(length));
  }
}

// Indices and match flags in a stage are aligned for bulk copies.
struct MatchStage {
  int32_t *a_index, *b_index;
  bool *a_match, *b_match;

  __device__ __forceinline__ static MatchStage of(const MergeTile& tile, unsigned char* stage, int index_bytes) {
    const int a_count = static_cast<int>(tile.a_count);
    int32_t* const index = reinterpret_cast<int32_t*>(stage);
    bool* const match = reinterpret_cast<bool*>(stage + index_bytes);
    return {index, index + round_up_to_line<int32_t>(a_count + kLineBytes / sizeof(int32_t)), match,
            match + round_up_to_line<bool>(a_count + kLineBytes)};
  }
};

// Advances over the thread's next kCount items. Sets bit i of `matches` if the other side has an item equal to the i-th
// of them. Bit i of the result says whether that item is B's.
template <int kCount, typename Keys>
__device__ __forceinline__ unsigned merge_matches(const MergeTile& tile, const Keys& keys, const MergeCursor& cursor,
                                                  unsigned& matches) {
  // These bounds include A's item before the tile and B's item after it, if there are such items.
  const uint32_t a_first = shared_address(keys.buffer + keys.runs.a - (tile.a > 0));
  const uint32_t b_end = shared_address(keys.buffer + keys.runs.b_end + (tile.b_follows ? 1 : 0));
  auto a_before = keys.buffer[maximum(cursor.a - 1, 0)];
  return keys.template merge_from<kCount>(cursor, [&](int i, bool in_b, const auto& heads) {
    // An item of A comes before all items of B that are not less, and can only equal the first of these. An item of B
    // comes after all items of A that are not greater, and can only equal the last of these.
    if (i == 0) a_before = heads.order.encode(a_before);
    bool match = !heads.order.less(in_b ? a_before : heads.a_code, heads.b_code);
    if constexpr (!std::remove_cvref_t<decltype(heads)>::kOpen) match &= in_b ? heads.a > a_first : heads.b < b_end;
    matches |= match ? 1u << i : 0u;
    a_before = in_b ? a_before : heads.a_code;
  });
}

// Stores results that are not copied in bulk: before sm_90, or if indices have 64 bits.
__device__ __forceinline__ void store_matches(const SortedMatchOperands::Side& side, const int32_t* index,
                                              const bool* match, int64_t first, int64_t count, int64_t base) {
  match += place_in_line(side.match, first);
  for (int i = threadIdx.x; i < count; i += kPipelineWorkers) {
    side.index.set(first + i, base + index[i]);
    side.match[first + i] = match[i];
  }
}

// The row of the dead items begins at `first`.
__device__ __forceinline__ void clear_matches(const SortedMatchOperands::Side& side, int64_t first,
                                              Range<int64_t> dead) {
  for_each_dead<kPipelineWorkers>(dead, [&](int64_t i) {
    side.index.set(first + i, -1);
    side.match[first + i] = false;
  });
}

template <typename Order, bool kLargeStages>
__global__ void __launch_bounds__(kPipelineThreads, kPipelineBlocks)
    match_tiles(const __grid_constant__ MatchProblem<Order> problem) {
  using Word = typename Order::Word;
  extern __shared__ __align__(kLineBytes) unsigned char stages[];
  constexpr PipelineShape kShape = search_shape(sizeof(Word), true, kLargeStages);
  if constexpr (kLargeStages && !may_grant(kShape.wanted_bytes())) return __trap();
  constexpr int kCount = kShape.items;
  constexpr int kIndexBytes = search_index_bytes(sizeof(Word), kCount);
  using S = MergePipeline<Order, kCount, true>;
  __shared__ typename S::Shared shared;
  const MergeTiles<Order>& tiles = problem.stream.tiles;
  const SortedPair& pair = tiles.pair;
  const bool bulk = kHasBulkCopies && !problem.a.index.wide;
  int64_t row = -1;  // the row of the matches counted so far
  int a_matches = 0, b_matches = 0;
  const auto add_counts = [&] {
    if (row < 0) return;
    add_to_count(problem.a.count, row, a_matches, pair.a.length);
    add_to_count(problem.b.count, row, b_matches, pair.b.length);
    a_matches = b_matches = 0;
  };
  const auto first_a = [&](const MergeTile& tile) { return tile.row * pair.a.length + tile.a; };
  const auto first_b = [&](const MergeTile& tile) { return tile.row * pair.b.length + tile.b; };

  const auto work = [&](const typename S::Plan& plan, const typename S::Keys& keys, unsigned char* stage) {
    const MergeTile& tile = plan.tile;
    if (tile.row != row) add_counts();
    row = tile.row;
    const int diagonal = threadIdx.x * kCount;
    const MergeCursor cursor = keys.cursor(diagonal);
    unsigned matches = 0;
    const unsigned from_b = merge_matches<kCount>(tile, keys, cursor, matches);
    const unsigned live = live_items<kCount>(tile, diagonal);
    a_matches += __popc(matches & ~from_b & live);
    b_matches += __popc(matches & from_b & live);
    S::sync_workers();

    const MatchStage to = MatchStage::of(tile, stage, kIndexBytes);
    int a = cursor.a - keys.runs.a, b = cursor.b - keys.runs.b;
    const int32_t a_base = bulk ? static_cast<int32_t>(tile.a) : 0;
    const int32_t b_base = bulk ? static_cast<int32_t>(tile.b) : 0;
    const int a_index = bulk ? place_in_line(static_cast<int32_t*>(problem.a.index.data), first_a(tile)) : 0;
    const int b_index = bulk ? place_in_line(static_cast<int32_t*>(problem.b.index.data), first_b(tile)) : 0;
    put_matches<kCount>(to.a_index + a_index + a, to.a_match + place_in_line(problem.a.match, first_a(tile)) + a,
                        ~from_b & live, a + a_base, to.b_index + b_index + b,
                        to.b_match + place_in_line(problem.b.match, first_b(tile)) + b, from_b & live, b + b_base,
                        matches);
    if (!bulk) {
      S::sync_workers();
      store_matches(problem.a, to.a_index, to.a_match, first_a(tile), tile.a_count, tile.b);
      store_matches(problem.b, to.b_index, to.b_match, first_b(tile), tile.b_count, tile.a);
    }
    if (tile.dead() > 0) {
      clear_matches(problem.a, row * pair.a.length, tiles.a_dead(tile));
      clear_matches(problem.b, row * pair.b.length, tiles.b_dead(tile));
    }
  };

  const auto store = [&](const typename S::Plan& plan, unsigned char* stage) {
    const MergeTile& tile = plan.tile;
    const MatchStage from = MatchStage::of(tile, stage, kIndexBytes);
    const int a_count = bulk ? static_cast<int>(tile.a_count) : 0;
    const int b_count = bulk ? static_cast<int>(tile.b_count) : 0;
    const BulkStore<int32_t> a_index(static_cast<int32_t*>(problem.a.index.data), first_a(tile), a_count, from.a_index);
    const BulkStore<int32_t> b_index(static_cast<int32_t*>(problem.b.index.data), first_b(tile), b_count, from.b_index);
    const BulkStore<bool> a_match(problem.a.match, first_a(tile), a_count, from.a_match);
    const BulkStore<bool> b_match(problem.b.match, first_b(tile), b_count, from.b_match);
    return [=] { a_index.start(), b_index.start(), a_match.start(), b_match.start(); };
  };

  S::run(
      problem.stream, shared, stages, kShape.stage_bytes,
      [](const typename S::Plan&, unsigned char*) { return [](CopyBarrier&) { return 0u; }; }, work, store);
  if (threadIdx.x < kPipelineWorkers) add_counts();
}

}  // namespace mgpu::cuda::searching
