// A tile of short rows of two sorted operands in shared memory: the codes of A's rows, then those of B's.
#pragma once

#include "algorithm/sorted_pair.h"
#include "cuda/block/row_tile.cuh"
#include "cuda/block/serial_merge.cuh"

namespace mgpu::cuda {

template <typename Order>
struct ShortPair {
  using Word = typename Order::Word;
  static constexpr int kMaxShare = RowTiles::kMostSlots / RowTiles::kThreads;
  static constexpr int kSlack = kMaxShare + 2;  // items that a thread may read past the end of its runs

  RowTiles tiles;
  SortedPair pair;
  Order order;
  Divisor a_length;
  Divisor b_length;
  int a_pitch;
  int b_pitch;
  int b_place;  // the place of B's first row in shared memory
  int room;     // items of shared memory
  int share;    // items of both operands per thread
  int stride;   // the first stride of a merge path search

  ShortPair(const SortedPair& pair, const Order& order, int64_t row_results)
      : tiles(pair.rows, maximum(row_results, pair.row_slots())),
        pair(pair),
        order(order),
        a_length(pair.a.length),
        b_length(pair.b.length),
        a_pitch(shared_pitch(pair.a.length, pair.a.stride == 0)),
        b_pitch(shared_pitch(pair.b.length, pair.b.stride == 0)),
        b_place(shared_room(pair.a.length, a_pitch, tiles.tile_rows)),
        room(shared_room(b_place + shared_room(pair.b.length, b_pitch, tiles.tile_rows) + kSlack, 0, 1)),
        share(tiles.share(pair.row_slots())),
        stride(first_stride(minimum(pair.a.length, pair.b.length))) {}

  static bool fits(const SortedPair& pair, int64_t row_results, int64_t limit = RowTiles::kMostSlots) {
    return maximum(row_results, pair.row_slots()) <= limit;
  }
};

template <typename Value>
struct ValueRows {
  const Value* data;
  int64_t stride;
  __device__ const Value& at(int64_t row, int i) const { return data[row * stride + i]; }
};

template <typename Order>
struct PairRows {
  using Word = typename Order::Word;
  const ShortPair<Order>& problem;
  RowTile tile;
  Word* keys;
  SharedRows<Word> a;
  SharedRows<Word> b;

  // A barrier must follow.
  __device__ PairRows(const ShortPair<Order>& problem, Word* keys)
      : problem(problem),
        tile(problem.tiles),
        keys(keys),
        a(load(problem.pair.a, problem.a_length, problem.a_pitch, keys)),
        b(load(problem.pair.b, problem.b_length, problem.b_pitch, keys + problem.b_place)) {
    __shared__ int live[2][RowTiles::kMostRows];
    load_live(tile, problem.pair.a, live[0]);
    load_live(tile, problem.pair.b, live[1]);
    a_live_ = live[0];
    b_live_ = live[1];
  }

  // The live items of a row, as positions in `keys`.
  __device__ MergeCursor runs(int row) const {
    const int a_begin = row * a.pitch, b_begin = problem.b_place + row * b.pitch;
    return {a_begin, a_begin + a_live(row), b_begin, b_begin + b_live(row)};
  }
  __device__ int a_live(int row) const { return a_live_[row]; }
  __device__ int b_live(int row) const { return b_live_[row]; }

  // With gives_indices, the value is the item's index, where B's items follow A's.
  template <typename Value>
  __device__ Value value_of(int source, int row, bool gives_indices, const ValueRows<Value>& a_values,
                            const ValueRows<Value>& b_values) const {
    const bool in_b = source >= problem.b_place;
    const int i = in_b ? source - problem.b_place - row * b.pitch : source - row * a.pitch;
    if (gives_indices) return static_cast<Value>(in_b ? problem.pair.a.length + i : i);
    return (in_b ? b_values : a_values).at(tile.first + row, i);
  }

  __device__ int less_in_a(int row, Word key) const {
    return lower_bound(0, a_live(row), [items = a.row(row)](int i) { return items[i]; }, key, less());
  }
  __device__ int less_in_b(int row, Word key) const {
    return lower_bound(0, b_live(row), [items = b.row(row)](int i) { return items[i]; }, key, less());
  }
  __device__ int up_to_in_a(int row, Word key) const {
    return upper_bound(0, a_live(row), [items = a.row(row)](int i) { return items[i]; }, key, less());
  }
  __device__ int up_to_in_b(int row, Word key) const {
    return upper_bound(0, b_live(row), [items = b.row(row)](int i) { return items[i]; }, key, less());
  }
  __device__ auto less() const {
    return [order = problem.order](Word x, Word y) { return order.less(x, y); };
  }

 private:
  const int* a_live_;
  const int* b_live_;

  __device__ SharedRows<Word> load(const SortedRows& side, const Divisor& length, int pitch, Word* to) const {
    return load_rows(tile, static_cast<const Word*>(side.keys), length, side.stride, pitch, to,
                     [order = problem.order](Word key) { return order.encode(key); });
  }
};

}  // namespace mgpu::cuda
