#pragma once

#include "ops/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

// The entries that are sorted, as unsigned words. With payload, an entry is a rank (Order::rank) and the item's place,
// so all entries differ. Without payload, it is a code; entries that are the same word may be taken in any order.
template <typename Order, bool kPlaced>
struct Entries {
  using Word = typename Order::Word;
  using Entry = Word;
  static constexpr bool kPlain = Order::kTotal;  // whether entries of any codes compare as words
  __device__ static Entry make(const Order&, Word code, int) { return code; }
};

template <typename Order>
struct Entries<Order, true> {
  using Word = typename Order::Word;
  using Entry = std::conditional_t<sizeof(Word) == 8, unsigned __int128,
                                   std::conditional_t<sizeof(Word) == 4, uint64_t, uint32_t>>;
  static constexpr bool kPlain = true;
  static constexpr int kPlaceBits = 4 * sizeof(Entry);
  __device__ static Entry make(const Order& order, Word code, int place) {
    return static_cast<Entry>(order.rank(code)) << kPlaceBits | static_cast<Entry>(place);
  }
  __device__ static Word rank(Entry entry) { return static_cast<Word>(entry >> kPlaceBits); }
  __device__ static int place(Entry entry) { return static_cast<int>(entry & ((Entry{1} << kPlaceBits) - 1)); }
};

// One warp merges a group of runs that have at most this many items in all.
constexpr int kShortItems = 256;

// A block's merge in a round gives outputs [first, first + size) of a group of runs. Positions are in the row.
struct RowMerge {
  MergeGroup<int64_t> group;
  int64_t row_begin;
  int64_t first;
  int size;            // 0 if there is nothing to merge
  int source, target;  // the buffers that are read and written
  bool decode;         // whether the outputs are keys, not codes
};

struct LiveRow {
  int64_t begin;  // the position in the array
  int64_t live;   // items past it stay
  int rounds;
};

// Rows whose cells are sorted, whatever merges them afterwards.
template <typename Order_, typename Payload_, TileShape kSort_>
struct CellProblem {
  using Order = Order_;
  using Payload = Payload_;
  using Word = typename Order::Word;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  using Entries = sorting::Entries<Order, kHasPayload>;
  using Entry = typename Entries::Entry;
  static constexpr TileShape kSort = kSort_;
  static constexpr bool kPacked = false;
  static constexpr int kCell = kSort.threads * kSort.items;

  Order order;
  Segments segments;
  int64_t row_cells;
  bool merges_pairs;  // whether a round merges two runs, not four
  Buffer<Order, Payload> input;
  Buffer<Order, Payload> buffers[2];  // a row that takes r rounds starts in buffers[r % 2]
  int* unplain;                       // whether different codes may compare equal: there are negative zeros or NaNs
  const RunGroup* groups = nullptr;
  Disorder disorder;  // if it is large, other kernels sort the rows by digits, and nothing is merged

  MGPU_HOST_DEVICE int rounds(int64_t live) const {
    return merges_pairs ? merge_rounds<int64_t>({0, live}, kCell) : group_rounds<int64_t>({0, live}, kCell);
  }
  __device__ LiveRow row(int64_t index) const {
    const int64_t live = segments.live(index);
    return {index * segments.length, live, groups ? 2 : rounds(live)};
  }
  struct Cell {
    const CellProblem& problem;
    __device__ int64_t row() const { return problem.segments.rows == 1 ? 0 : blockIdx.x / problem.row_cells; }
    __device__ int64_t begin(int64_t row) const { return (blockIdx.x - row * problem.row_cells) * kCell; }
    __device__ static unsigned thread() { return threadIdx.x; }
    __device__ static constexpr int threads() { return kSort.threads; }
  };
  __device__ Cell cell() const { return {*this}; }
  __device__ Payload input_payload(int64_t row_begin, int64_t position) const {
    return input.payload ? input.payload[row_begin + position] : static_cast<Payload>(position);
  }
};

// Rows whose cells are sorted and then merged.
template <typename Order, typename Payload, RowShape kShape>
struct RowProblem : CellProblem<Order, Payload, kShape.sort> {
  using Cells = CellProblem<Order, Payload, kShape.sort>;
  using Cells::buffers, Cells::groups, Cells::kCell, Cells::row_cells, Cells::segments;
  static constexpr TileShape kMerge = kShape.merge;
  static constexpr bool kPairs = kShape.runs == 2;
  static constexpr int kTile = kShape.tile();

  int64_t row_tiles;
  int64_t* splits;  // kRuns for the start of each tile
  const GroupTile* group_tiles = nullptr;
  const int* group_tiles_count = nullptr;
  const int* short_groups_count = nullptr;

  MGPU_HOST_DEVICE int64_t most_groups() const { return segments.rows * row_cells; }
  __device__ RowMerge merge(int64_t index, int round) const {
    if (groups) {
      if (index >= *group_tiles_count) return {};
      const GroupTile tile = group_tiles[index];
      const RunGroup& run_group = groups[tile.group];
      const int64_t first = run_group.runs.begin() + tile.tile * int64_t{kTile};
      const int size = static_cast<int>(minimum<int64_t>(kTile, run_group.runs.end() - first));
      return {run_group.runs, run_group.row_begin, first, size, run_group.source, run_group.target, run_group.decode};
    }
    const int64_t row_index = segments.rows == 1 ? 0 : index / row_tiles;
    if (row_index >= segments.rows) return {};
    const int64_t first = (index - row_index * row_tiles) * kTile;
    const LiveRow row = this->row(row_index);
    if (round >= row.rounds || first >= row.live) return {};
    const int source = (row.rounds - round) & 1;
    MergeGroup<int64_t> group;
    if constexpr (kPairs) {
      const auto pair = merge_pair<int64_t>({0, row.live}, 0, kCell, first / kCell, round);
      group = {pair.begin, pair.middle, pair.end, pair.end, pair.end};
    } else {
      group = merge_group<int64_t>({0, row.live}, 0, kCell, first / kCell, round);
    }
    const int size = static_cast<int>(minimum<int64_t>(kTile, row.live - first));
    return {group, row.begin, first, size, source, 1 - source, round + 1 == row.rounds};
  }
};

// A cell of several rows, as one thread sees it.
class PackedCell {
 public:
  __device__ PackedCell(int64_t row, int thread, int threads) : row_(row), thread_(thread), threads_(threads) {}
  __device__ int64_t row() const { return row_; }
  __device__ static int64_t begin(int64_t /*row*/) { return 0; }
  __device__ int thread() const { return thread_; }
  __device__ int threads() const { return threads_; }

 private:
  int64_t row_;
  int thread_, threads_;
};

template <typename Order, typename Payload, TileShape kSort>
struct PackedProblem : CellProblem<Order, Payload, kSort> {
  static constexpr bool kPacked = true;
  __device__ PackedCell cell() const {
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = packed_row_threads(this->segments.length, kSort);
    return {blockIdx.x * int64_t{kSort.threads / threads} + thread / threads, thread % threads, threads};
  }
};

}  // namespace mgpu::cuda::sorting
