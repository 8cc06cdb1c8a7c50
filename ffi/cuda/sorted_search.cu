// sorted_search and sorted_match on CUDA: the merge's stream of tiles, where an item's place in the tile and its place
// among its own give its place among the others.
#include "cuda/cta/merge_stream.cuh"
#include "cuda/cta/shuffle.cuh"
#include "cuda/launch.cuh"
#include "operands/sorted_search.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

constexpr int kThreads = 256;

template <typename Order>
constexpr int kItems = sizeof(typename Order::Word) == 8 ? 13 : 15;

template <typename Order, bool kNeighbours>
using Stream = MergeStream<Order, kThreads, kItems<Order>, kNeighbours>;

// One side of a tile on its way out: for each of its items, how many items of the other side precede it in the tile.
// Indices into shared memory count from the side's first item in the tile.
struct Staged {
  static constexpr unsigned kMatch = 1u << 15;  // set for an item that occurs in the other operand
  uint16_t* entries;

  // Stores a thread's items, `mine` being a bit mask of those among its next items. `place` is that of the first one.
  template <int kCount>
  __device__ void put(int diagonal, unsigned mine, unsigned matches, int place) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((mine >> i) & 1) {
        entries[place] = static_cast<uint16_t>((diagonal + i - place) | ((matches >> i) & 1 ? kMatch : 0));
        ++place;
      }
    }
  }

  // Calls store(position, entry) for the `count` items from `first` on, whole cache lines at a time.
  template <typename Store>
  __device__ void for_each(int64_t first, int count, Store store) const {
    for (int i = static_cast<int>(threadIdx.x) - static_cast<int>(first % kWarp); i < count; i += kThreads) {
      if (i >= 0) store(first + i, entries[i]);
    }
  }
};

// Calls store(position) for a range of dead items.
template <typename Store>
__device__ void for_each_dead(Range<int64_t> dead, Store store) {
  for (int64_t i = dead.begin + threadIdx.x; i < dead.end; i += kThreads) store(i);
}

// The bits of a thread's items that are live.
template <typename Order>
__device__ unsigned live_items(const MergeTile& tile, int diagonal) {
  const int count = clamp(static_cast<int>(tile.live()) - diagonal, 0, kItems<Order>);
  return (1u << count) - 1;
}

template <typename Order>
__global__ void __launch_bounds__(kThreads)
    search_shares(const __grid_constant__ MergeTiles<Order> tiles, IndexResult positions, bool needles_are_b) {
  extern __shared__ __align__(16) unsigned char buffers[];
  using S = Stream<Order, false>;
  __shared__ typename S::Shared shared;
  const SortedPair& pair = tiles.pair;
  const int64_t length = needles_are_b ? pair.b.length : pair.a.length;

  const auto work = [&](const MergeTile& tile, const TileKeys<Order>& keys) {
    const int diagonal = threadIdx.x * kItems<Order>;
    const MergeCursor cursor = keys.cursor(diagonal);
    const unsigned from_b = keys.template merge_from<kItems<Order>>(cursor, [](auto...) {});
    __syncthreads();
    const Staged staged{reinterpret_cast<uint16_t*>(keys.buffer)};
    staged.template put<kItems<Order>>(diagonal, (needles_are_b ? from_b : ~from_b) & live_items<Order>(tile, diagonal),
                                       0, needles_are_b ? cursor.b - keys.runs.b : cursor.a - keys.runs.a);
    __syncthreads();
    const int64_t row = tile.row * length;
    const int64_t base = needles_are_b ? tile.a : tile.b;
    staged.for_each(row + (needles_are_b ? tile.b : tile.a), needles_are_b ? tile.b_count : tile.a_count,
                    [&](int64_t i, unsigned entry) { positions.set(i, base + entry); });
    if (tile.dead() > 0) {
      for_each_dead(needles_are_b ? tiles.b_dead(tile) : tiles.a_dead(tile),
                    [&](int64_t i) { positions.set(row + i, -1); });
    }
  };

  S::run(tiles, shared, buffers, [](const MergeTile&) {}, work);
}

template <typename Order>
__global__ void __launch_bounds__(kThreads)
    search_needles(const __grid_constant__ SortedSearchOperands operands, Order order) {
  using Word = typename Order::Word;
  const SortedRows& needles = operands.needles();
  const SortedRows& haystack = operands.haystack();
  const int64_t slot = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (slot >= operands.pair.rows * needles.length) return;
  const int64_t row = operands.pair.rows == 1 ? 0 : slot / needles.length;
  operands.positions.set(slot, operands.search(order, row, slot - row * needles.length,
                                               static_cast<const Word*>(needles.keys) + row * needles.stride,
                                               static_cast<const Word*>(haystack.keys) + row * haystack.stride));
}

template <typename Order>
struct MatchProblem {
  MergeTiles<Order> tiles;
  SortedMatchOperands::Side a;
  SortedMatchOperands::Side b;
};

// Adds a number of each thread to a count, which the order of additions does not change. Tiles of keys that are not
// sorted can share items: whoever takes the count past the operand's length cuts it back.
__device__ void add_to_count(const IndexResult& counts, int64_t row, int number, int64_t length) {
  number = fold_warp(number, [](int a, int b) { return a + b; });
  if (threadIdx.x % kWarp != 0 || number == 0) return;
  const auto add = [&](auto* count, auto added, auto most) {
    if (atomicAdd(count, added) + added > most) atomicMin(count, most);
  };
  using Wide = unsigned long long;
  using Narrow = unsigned;
  if (counts.wide) {
    add(static_cast<Wide*>(counts.data) + row, static_cast<Wide>(number), static_cast<Wide>(length));
  } else {
    add(static_cast<Narrow*>(counts.data) + row, static_cast<Narrow>(number), static_cast<Narrow>(length));
  }
}

template <typename Order>
__global__ void __launch_bounds__(kThreads) match_shares(const __grid_constant__ MatchProblem<Order> problem) {
  using Word = typename Order::Word;
  extern __shared__ __align__(16) unsigned char buffers[];
  using S = Stream<Order, true>;
  __shared__ typename S::Shared shared;
  const MergeTiles<Order>& tiles = problem.tiles;
  const SortedPair& pair = tiles.pair;
  int64_t row = -1;  // of the matches counted so far
  int a_matches = 0, b_matches = 0;
  const auto add_counts = [&] {
    if (row < 0) return;
    add_to_count(problem.a.count, row, a_matches, pair.a.length);
    add_to_count(problem.b.count, row, b_matches, pair.b.length);
    a_matches = b_matches = 0;
  };

  const auto work = [&](const MergeTile& tile, const TileKeys<Order>& keys) {
    if (tile.row != row) add_counts();
    row = tile.row;
    const int diagonal = threadIdx.x * kItems<Order>;
    const MergeCursor cursor = keys.cursor(diagonal);
    const uint32_t a_first = shared_address(keys.buffer + keys.runs.a - (tile.a > 0));  // with the neighbour before
    const uint32_t b_end = shared_address(keys.buffer + keys.runs.b_end + (tile.b_left ? 1 : 0));  // and the one after
    Word a_before = keys.buffer[maximum(cursor.a - 1, 0)];
    unsigned matches = 0;
    const unsigned from_b =
        keys.template merge_from<kItems<Order>>(cursor, [&](int i, bool in_b, const MergeHeads<Word>& heads) {
          // An item of A stands before all of B that is not less: it is equal to the first of that or to none. An item
          // of B stands after all of A that is not greater: it is equal to the last of that or to none.
          const bool has_other = in_b ? heads.a > a_first : heads.b < b_end;
          const bool match = has_other & !keys.less(in_b ? a_before : heads.a_key, heads.b_key);
          matches |= match ? 1u << i : 0u;
          if (!in_b) a_before = heads.a_key;
        });
    const unsigned live = live_items<Order>(tile, diagonal);
    a_matches += __popc(matches & ~from_b & live);
    b_matches += __popc(matches & from_b & live);
    __syncthreads();
    const Staged a_staged{reinterpret_cast<uint16_t*>(keys.buffer)};
    const Staged b_staged{a_staged.entries + tile.a_count};
    a_staged.template put<kItems<Order>>(diagonal, ~from_b & live, matches, cursor.a - keys.runs.a);
    b_staged.template put<kItems<Order>>(diagonal, from_b & live, matches, cursor.b - keys.runs.b);
    __syncthreads();
    const auto store = [&](const SortedMatchOperands::Side& side, const Staged& staged, int64_t first, int64_t count,
                           int64_t base) {
      staged.for_each(first, static_cast<int>(count), [&](int64_t i, unsigned entry) {
        side.index.set(i, base + (entry & ~Staged::kMatch));
        side.match[i] = (entry & Staged::kMatch) != 0;
      });
    };
    store(problem.a, a_staged, row * pair.a.length + tile.a, tile.a_count, tile.b);
    store(problem.b, b_staged, row * pair.b.length + tile.b, tile.b_count, tile.a);
    if (tile.dead() > 0) {
      const auto clear = [&](const SortedMatchOperands::Side& side, int64_t first, Range<int64_t> dead) {
        for_each_dead(dead, [&](int64_t i) {
          side.index.set(first + i, -1);
          side.match[first + i] = false;
        });
      };
      clear(problem.a, row * pair.a.length, tiles.a_dead(tile));
      clear(problem.b, row * pair.b.length, tiles.b_dead(tile));
    }
  };

  S::run(tiles, shared, buffers, [](const MergeTile&) {}, work);
  add_counts();
}

// Launches a kernel of persistent blocks over the slots of a pair.
template <typename S, typename Kernel, typename... Arguments>
void launch_shares(const Call& call, cudaStream_t stream, const SortedPair& pair, Kernel kernel,
                   const Arguments&... arguments) {
  constexpr int kBytes = 2 * S::kBufferBytes;
  allow_shared(call, kernel, kBytes);
  const int blocks = resident_blocks(call, kernel, kThreads, kBytes, ceil_div<int64_t>(pair.slots(), S::kTile));
  kernel<<<blocks, kThreads, kBytes, stream>>>(arguments...);
  check_launch(call);
}

}  // namespace

void sorted_search(const Call& call, cudaStream_t stream) {
  const SortedSearchOperands operands(call);
  const int64_t needles = operands.pair.rows * operands.needles().length;
  if (needles == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    using Order = decltype(order);
    if (operands.search_each()) {
      search_needles<<<ceil_div<int64_t>(needles, kThreads), kThreads, 0, stream>>>(operands, order);
      check_launch(call);
    } else {
      launch_shares<Stream<Order, false>>(call, stream, operands.pair, search_shares<Order>,
                                          MergeTiles<Order>{operands.pair, order}, operands.positions,
                                          operands.needles_are_b);
    }
  });
}

void sorted_match(const Call& call, cudaStream_t stream) {
  const SortedMatchOperands operands(call);
  if (operands.pair.rows == 0) return;
  for (const auto* side : {&operands.a, &operands.b}) {
    const int64_t bytes = operands.pair.rows * (side->count.wide ? sizeof(int64_t) : sizeof(int32_t));
    check(call, cudaMemsetAsync(side->count.data, 0, bytes, stream));
  }
  if (operands.pair.slots() == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    using Order = decltype(order);
    launch_shares<Stream<Order, true>>(
        call, stream, operands.pair, match_shares<Order>,
        MatchProblem<Order>{MergeTiles<Order>{operands.pair, order}, operands.a, operands.b});
  });
}

}  // namespace mgpu::cuda
