// What the kernels of a sort of whole rows, without heads, work on: where a row, its runs and its tiles lie follows
// from a block's index.
#pragma once

#include "cuda/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

// What is sorted: a word whose plain order is the order of the keys and, with payload, their places among equal ones.
// So no two entries differ and are equal, and it does not matter in which order equal ones are taken.
template <typename Order, bool kPlaced>
struct Entries {
  using Word = typename Order::Word;
  using Entry = Word;
  static constexpr bool kPlain = Order::kTotal;  // else only where no two codes that differ are equal
  __device__ static Entry make(const Order&, Word code, int) { return code; }
};

template <typename Order>
struct Entries<Order, true> {
  using Word = typename Order::Word;
  using Entry = std::conditional_t<sizeof(Word) == 4, uint64_t, uint32_t>;
  static constexpr bool kPlain = true;
  static constexpr int kPlaceBits = 4 * sizeof(Entry);
  __device__ static Entry make(const Order& order, Word code, int place) {
    return static_cast<Entry>(order.rank(code)) << kPlaceBits | static_cast<Entry>(place);
  }
  __device__ static Word rank(Entry entry) { return static_cast<Word>(entry >> kPlaceBits); }
  __device__ static int place(Entry entry) { return static_cast<int>(entry & ((Entry{1} << kPlaceBits) - 1)); }
};

// The row that a block works on.
struct LiveRow {
  int64_t begin;  // in the array
  int64_t live;   // items past it stay
  int rounds;
};

template <typename Order_, typename Payload_, RowShape kShape>
struct RowProblem {
  using Order = Order_;
  using Payload = Payload_;
  using Word = typename Order::Word;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  using Entries = sorting::Entries<Order, kHasPayload>;
  using Entry = typename Entries::Entry;
  static constexpr TileShape kSort = kShape.sort;
  static constexpr TileShape kMerge = kShape.merge;
  static constexpr int kCell = kShape.cell();
  static constexpr int kTile = kShape.tile();
  static_assert(kCell % kTile == 0);

  Order order;
  Segments segments;
  int64_t row_cells;
  int64_t row_tiles;
  Buffer<Order, Payload> input;
  Buffer<Order, Payload> buffers[2];  // a row that takes r rounds starts in buffers[r % 2]
  int64_t* splits;                    // kRuns for the start of each tile
  int* unplain;                       // whether codes that differ are equal: some zeros are negative, or there are NaNs

  __device__ LiveRow row(int64_t index) const {
    const int64_t live = segments.live(index);
    return {index * segments.length, live, group_rounds<int64_t>({0, live}, kCell)};
  }
  __device__ Payload input_payload(int64_t row_begin, int64_t position) const {
    return input.payload ? input.payload[row_begin + position] : static_cast<Payload>(position);
  }
};

}  // namespace mgpu::cuda::sorting
