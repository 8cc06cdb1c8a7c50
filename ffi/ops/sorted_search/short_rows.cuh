// One thread per item makes a binary search in a row in shared memory.
#pragma once

#include "ops/sorted_pair/short_rows.cuh"

namespace mgpu::cuda::short_rows {

template <typename Order>
struct Search {
  using Word = typename Order::Word;
  RowTiles tiles;
  SortedRows needles;
  SortedRows haystack;
  Order order;
  Divisor needles_length;
  Divisor haystack_length;
  int pitch;  // items from row to row of the haystack in shared memory
  bool right;
  IndexResult positions;

  size_t shared_bytes() const { return shared_room(haystack.length, pitch, tiles.tile_rows) * sizeof(Word); }
};

template <typename Order>
__global__ void __launch_bounds__(kRowThreads) search(const __grid_constant__ Search<Order> problem) {
  using Word = typename Order::Word;
  extern __shared__ __align__(16) unsigned char shared[];
  const RowTile tile(problem.tiles);
  const Order order = problem.order;
  const SharedRows<Word> haystack =
      load_rows(tile, static_cast<const Word*>(problem.haystack.keys), problem.haystack_length, problem.haystack.stride,
                problem.pitch, reinterpret_cast<Word*>(shared), [&](Word key) { return order.encode(key); });
  __shared__ int needles_live[RowTiles::kMostRows];
  __shared__ int haystack_live[RowTiles::kMostRows];
  load_live(tile, problem.needles, needles_live);
  load_live(tile, problem.haystack, haystack_live);
  __syncthreads();

  const Word* const needles = static_cast<const Word*>(problem.needles.keys) + tile.first * problem.needles.stride;
  const int64_t first = tile.first * problem.needles.length;
  for_each_loaded<4>(
      tile, problem.needles_length, [&](int, int row, int i) { return needles[row * problem.needles.stride + i]; },
      [&](int slot, int row, int i, Word needle) {
        const Word key = order.encode(needle);
        const auto keys = [items = haystack.row(row)](int j) { return items[j]; };
        const auto less = [&](Word x, Word y) { return order.less(x, y); };
        const int live = haystack_live[row];
        const int found = problem.right ? upper_bound(0, live, keys, key, less) : lower_bound(0, live, keys, key, less);
        problem.positions.set(first + slot, i < needles_live[row] ? found : -1);
      });
}

struct MatchSide {
  IndexResult index;
  bool* match;
  IndexResult count;
};

template <typename Order>
struct Match {
  ShortPair<Order> rows;
  MatchSide a;
  MatchSide b;

  size_t shared_bytes() const {
    return rows.room * sizeof(typename Order::Word) + 2 * rows.tiles.tile_rows * sizeof(int);
  }
};

struct Found {
  int place;
  bool is_live;
  bool matches;
};

// Matches of a row are counted with at most one atomic addition per warp and step.
template <typename LookUp>
__device__ void match_side(const RowTile& tile, const Divisor& length, const MatchSide& side, int* matches,
                           LookUp look_up) {
  const int row_slots = static_cast<int>(length.divisor);
  const int slots = tile.rows * row_slots;
  const int in_warp = threadIdx.x % kWarp;
#pragma unroll 2
  for (int base = 0; base < slots; base += kRowThreads) {
    const int slot = base + threadIdx.x;
    const bool exists = slot < slots;
    const int row = static_cast<int>(length.quotient(minimum(slot, slots - 1)));
    const int i = minimum(slot, slots - 1) - row * row_slots;
    const Found found = look_up(row, i);
    const bool is_match = exists & found.is_live & found.matches;
    if (exists) {
      side.index.set(tile.first * row_slots + slot, found.is_live ? found.place : -1);
      side.match[tile.first * row_slots + slot] = is_match;
    }
    const unsigned later = __ballot_sync(~0u, is_match) >> in_warp;
    if (exists && (i == 0 || in_warp == 0)) {
      const unsigned own = row_slots - i < kWarp ? later & ((1u << (row_slots - i)) - 1) : later;
      if (own != 0) atomicAdd(&matches[row], __popc(own));
    }
  }
}

template <typename Order>
__global__ void __launch_bounds__(kRowThreads) match(const __grid_constant__ Match<Order> problem) {
  using Word = typename Order::Word;
  extern __shared__ __align__(16) unsigned char shared[];
  int* const a_matches = reinterpret_cast<int*>(shared);
  int* const b_matches = a_matches + problem.rows.tiles.tile_rows;
  const PairRows<Order> pair(problem.rows, reinterpret_cast<Word*>(b_matches + problem.rows.tiles.tile_rows));
  const RowTile& tile = pair.tile;
  for (int row = threadIdx.x; row < 2 * problem.rows.tiles.tile_rows; row += kRowThreads) a_matches[row] = 0;
  __syncthreads();

  // An item of A comes before all items of B that are not less, and an item of B comes after all items of A that are
  // not greater.
  const auto less = pair.less();
  match_side(tile, problem.rows.a_length, problem.a, a_matches, [&](int row, int i) {
    const Word key = pair.a.row(row)[i];
    const int found = pair.less_in_b(row, key);
    return Found{found, i < pair.a_live(row), found < pair.b_live(row) && !less(key, pair.b.row(row)[found])};
  });
  match_side(tile, problem.rows.b_length, problem.b, b_matches, [&](int row, int i) {
    const Word key = pair.b.row(row)[i];
    const int found = pair.up_to_in_a(row, key);
    return Found{found, i < pair.b_live(row), found > 0 && !less(pair.a.row(row)[found - 1], key)};
  });
  __syncthreads();
  for (int row = threadIdx.x; row < tile.rows; row += kRowThreads) {
    problem.a.count.set(tile.first + row, a_matches[row]);
    problem.b.count.set(tile.first + row, b_matches[row]);
  }
}

}  // namespace mgpu::cuda::short_rows
