// An item of A finds its partners in B by binary search, and a scan adds up the output rows of the items.
// An output row then finds its item of A.
#pragma once

#include "ops/sorted_pair/short_rows.cuh"

namespace mgpu::cuda::short_rows {

template <typename Order>
struct Join {
  ShortPair<Order> rows;
  Divisor size;  // the output rows that a row of the batch has room for
  int a_share;   // the items of A that a thread takes
  int b_share;   // the same for B
  bool keep_a;
  bool keep_b;
  IndexResult a_indices;
  IndexResult b_indices;
  IndexResult counts;

  static constexpr int64_t kMaxSize = 4 * RowTiles::kMostSlots;

  // The keys; for each item of A, its first output row and its first partner; with keep_b, B's items without a partner.
  // Besides, for each row of the tile and for its end: the number of output rows that A's items have in the tile's
  // earlier rows (before_row), and the number of items of B without a partner there (unmatched_before_row).
  size_t shared_bytes() const {
    const auto items = [&](const SortedRows& side) { return rows.tiles.tile_rows * static_cast<int>(side.length); };
    return rows.room * sizeof(typename Order::Word) + 2 * (rows.tiles.tile_rows + 1) * sizeof(int) +
           items(rows.pair.a) * (sizeof(int) + sizeof(uint16_t)) + (keep_b ? items(rows.pair.b) * sizeof(uint16_t) : 0);
  }
};

template <typename Order>
__global__ void __launch_bounds__(kRowThreads) join(const __grid_constant__ Join<Order> problem) {
  using Word = typename Order::Word;
  extern __shared__ __align__(16) unsigned char shared[];
  Word* const keys = reinterpret_cast<Word*>(shared);
  const int tile_rows = problem.rows.tiles.tile_rows;
  const int a_length = static_cast<int>(problem.rows.a_length.divisor);
  const int b_length = static_cast<int>(problem.rows.b_length.divisor);
  int* const before_row = reinterpret_cast<int*>(keys + problem.rows.room);
  int* const unmatched_before_row = before_row + tile_rows + 1;
  int* const first_rows = unmatched_before_row + tile_rows + 1;  // the first output row of each item of A
  uint16_t* const partners = reinterpret_cast<uint16_t*>(first_rows + tile_rows * a_length);
  uint16_t* const unmatched = partners + tile_rows * a_length;  // the items of B without a partner
  constexpr uint16_t kNone = 0xffff;
  const PairRows<Order> pair(problem.rows, keys);
  const RowTile& tile = pair.tile;
  const auto less = pair.less();
  __syncthreads();

  {
    const RowLane lane(tile, problem.rows.tiles, problem.a_share);
    const int end = lane.exists ? minimum(lane.begin + problem.a_share, pair.a_live(lane.row)) : 0;
    int made = 0;
    for (int i = lane.begin; i < end; ++i) {
      const Word key = pair.a.row(lane.row)[i];
      const int first = pair.less_in_b(lane.row, key);
      const int last = pair.up_to_in_b(lane.row, key);
      first_rows[lane.row * a_length + i] = made;
      partners[lane.row * a_length + i] = last > first ? static_cast<uint16_t>(first) : kNone;
      made += maximum(last - first, int{problem.keep_a});
    }
    const int before = scan_rows(made, lane, tile, before_row);
    for (int i = lane.begin; i < end; ++i) first_rows[lane.row * a_length + i] += before;
  }
  if (problem.keep_b) {
    const RowLane lane(tile, problem.rows.tiles, problem.b_share);
    const int a_live = pair.a_live(lane.row);
    const int end = lane.exists ? minimum(lane.begin + problem.b_share, pair.b_live(lane.row)) : 0;
    const Word* const a = pair.a.row(lane.row);
    unsigned is_unmatched = 0;
    for (int i = lane.begin; i < end; ++i) {
      const Word key = pair.b.row(lane.row)[i];
      const int place = pair.less_in_a(lane.row, key);
      if (place == a_live || less(key, a[place])) is_unmatched |= 1u << (i - lane.begin);
    }
    int slot = scan_rows(__popc(is_unmatched), lane, tile, unmatched_before_row);
    for (; is_unmatched != 0; is_unmatched &= is_unmatched - 1) {
      unmatched[slot++] = static_cast<uint16_t>(lane.begin + __ffs(is_unmatched) - 1);
    }
  }
  __syncthreads();

  const auto paired = [&](int row) { return before_row[row + 1] - before_row[row]; };
  const auto unmatched_in = [&](int row) {
    return problem.keep_b ? unmatched_before_row[row + 1] - unmatched_before_row[row] : 0;
  };
  for (int row = threadIdx.x; row < tile.rows; row += kRowThreads) {
    problem.counts.set(tile.first + row, paired(row) + unmatched_in(row));
  }
  const int64_t first = tile.first * problem.size.divisor;
  for_each_slot(tile, problem.size, [&](int slot, int row, int i) {
    int a = -1, b = -1;
    if (i < paired(row)) {
      const int target = before_row[row] + i;
      const int* const rows_of = first_rows + row * a_length;
      a = partition_point(0, pair.a_live(row), [=](int j) { return rows_of[j] <= target; }) - 1;
      const int partner = partners[row * a_length + a];
      if (partner != kNone) b = partner + target - rows_of[a];
    } else if (i - paired(row) < unmatched_in(row)) {
      b = unmatched[unmatched_before_row[row] + i - paired(row)];
    }
    problem.a_indices.set(first + slot, a);
    problem.b_indices.set(first + slot, b);
  });
}

}  // namespace mgpu::cuda::short_rows
