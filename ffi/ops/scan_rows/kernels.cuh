// A block takes a tile of rows and columns, in shared memory. Its threads form
// groups with one thread for each column, and each group takes neighbouring rows.
// A thread walks over its rows twice, in the order of the scan: first to sum
// them up, and then, with the sum of all earlier rows, to compute the results.
#pragma once

#include "algorithm/quotient.h"
#include "cuda/block/look_back.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/scan_rows/plan.h"

namespace mgpu::cuda::row_scanning {

constexpr int kThreads = kScanRowsThreads;
constexpr int kWarps = kThreads / kWarp;

// A number has no leaves. An item of a caller's function has some, each a number in an array of its own.
template <typename Element>
constexpr int leaves_of() {
  if constexpr (IsItem<Element>) {
    return Element::kLeaves;
  } else {
    return 0;
  }
}
template <typename Element, int kLeaf>
constexpr int leaf_bytes() {
  if constexpr (IsItem<Element>) {
    return kLeafBytes<Element, kLeaf>;
  } else {
    return sizeof(Element);
  }
}
template <typename Element, typename Visit>
__device__ __forceinline__ void for_each_leaf_of(Visit visit) {
  if constexpr (IsItem<Element>) {
    for_each_leaf<Element>(visit);
  } else {
    visit.template operator()<0>();
  }
}
template <int kLeaf, typename Element>
__device__ __forceinline__ const void* leaf_at(const Element* elements, int64_t i) {
  return elements + i;
}
template <int kLeaf, typename Element>
__device__ __forceinline__ const void* leaf_at(const ItemArrays<Element>& elements, int64_t i) {
  return elements.template at<kLeaf>(i);
}
template <int kLeaf, typename Operator>
__device__ __forceinline__ void* leaf_array(const ResultVector<Operator>& results) {
  if constexpr (IsItem<typename Operator::Result>) {
    return results.leaves[kLeaf];
  } else {
    return results.data;
  }
}
// Whether the last leaf of an element is that of the next row of the scan, and results depend on elements
// (jit/function_data.h).
template <typename Operator>
constexpr bool takes_next() {
  if constexpr (requires { Operator::kTakesNext; }) {
    return Operator::kTakesNext;
  } else {
    return false;
  }
}
template <int kLeaf, typename Result>
__device__ __forceinline__ const void* leaf_of(const Result& result) {
  if constexpr (IsItem<Result>) {
    return &Result::template leaf<kLeaf>(result);
  } else {
    return &result;
  }
}

template <typename Operator>
struct RowScan {
  SourceOf<typename Operator::Element> x;
  Segments segments;  // the segments of each problem's rows
  int64_t width;
  unsigned tiles;  // the tiles of a problem
  unsigned slices;
  int columns;
  int groups;  // the groups of rows in a tile
  bool contiguous;
  bool aligned;            // whether rows are copied by aligned vectors of 16 bytes
  Quotient row_copies{1};  // divides by the number of vectors, or else elements, that are copied per row of a tile
  int copied_rows;         // the rows that all threads copy at once
  int element_space;       // bytes of shared memory for a leaf's elements; the marks come last
  bool exclusive;
  bool reverse;
  uint64_t* look_back;  // a ticket counter, then the slots of each slice
  int64_t slice_words;
  int64_t level_slots[RowLookBack::kLevels + 1];
  const uint32_t* marks;
  int64_t mark_words;  // the words of marks of a problem; 0 if all problems share them
  ResultVector<Operator> result;
  ResultVector<Operator> totals;  // null if not requested
};

// If all problems share their heads, those of one are marked.
template <int kBlock = kThreads>
__global__ void __launch_bounds__(kBlock)
    mark_heads(Segments segments, int64_t problems, int64_t mark_words, uint32_t* marks) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= problems * segments.heads_count) return;
  const int64_t problem = i / segments.heads_count;
  const int64_t j = i - problem * segments.heads_count;
  const int64_t head = segments.row_head(problem, j);
  if (head == segments.length || (j > 0 && segments.row_head(problem, j - 1) == head)) return;
  atomicOr(marks + problem * mark_words + head / 32, 1u << (head % 32));
}

template <typename Operator, bool kSegmented, bool kWide>
struct TileScan {
  using Element = typename Operator::Element;
  using State = typename Operator::State;
  using Result = typename Operator::Result;
  using Sums = Sums<Operator, kSegmented>;
  using Sum = typename Sums::Value;
  using Slots = Slot<Sum>;
  using Tree = RowLookBack;
  static constexpr int kLeaves = leaves_of<Element>();
  static constexpr int kBytes = leaf_bytes<Element, 0>();  // of an element in the array of each leaf
  static constexpr int kVector = 16 / kBytes;
  static constexpr int kRows = RowScanTiling::thread_rows(kBytes, kLeaves, kWide);
  static constexpr int kStep = RowScanTiling::step(kBytes, kLeaves, kWide);
  using Leaf = typename CopyWord<kBytes>::Type;
  static_assert(kRows % kStep == 1);

  struct Tile {
    int64_t problem;
    int64_t first_row;  // in the problem
    int64_t first_column;
    int64_t origin;  // the tile's first element in memory
    uint64_t* words;
    unsigned index;  // the tile's number among those of a slice, in the order of the scan
    int size;
    int live;
    int columns;
    int lead;  // elements between a multiple of 16 bytes and the origin
  };
  struct Shared {
    Tile tile;
    Sum parts[kThreads];  // the sums of groups
  };

  const RowScan<Operator>& task;
  const Operator& op;
  Shared& shared;
  char* buffer;
  int group;
  int column;

  __device__ TileScan(const RowScan<Operator>& task, const Operator& op, Shared& shared, void* buffer)
      : task(task), op(op), shared(shared), buffer(static_cast<char*>(buffer)) {
    group = static_cast<int>(threadIdx.x) / task.columns;
    column = static_cast<int>(threadIdx.x) - group * task.columns;
  }

  __device__ __forceinline__ int tile_rows() const { return task.groups * kRows; }
  template <int kLeaf>
  __device__ __forceinline__ Leaf* plane() const {
    return reinterpret_cast<Leaf*>(buffer + kLeaf * task.element_space) + shared.tile.lead;
  }
  __device__ __forceinline__ Element element(int place) const {
    if constexpr (kLeaves == 0) {
      return reinterpret_cast<const Element*>(plane<0>())[place];
    } else {
      Element item;
      for_each_leaf<Element>([&]<int kLeaf>() {
        const Leaf leaf = plane<kLeaf>()[place];
        memcpy(&Element::template leaf<kLeaf>(item), &leaf, kBytes);
      });
      return item;
    }
  }
  // A bit for each row: whether it is a head. Bits of rows before the tile come first, so the words are the same as in
  // memory.
  __device__ __forceinline__ uint32_t* marks() const {
    return reinterpret_cast<uint32_t*>(buffer + maximum(kLeaves, 1) * task.element_space);
  }
  __device__ __forceinline__ bool takes_rows() const { return group < task.groups && column < shared.tile.columns; }

  __device__ __forceinline__ Tile find(unsigned ticket) const {
    Tile tile;
    const unsigned row_of_tiles = ticket / task.slices;
    const unsigned slice = ticket - row_of_tiles * task.slices;
    const unsigned problem = row_of_tiles / task.tiles;
    tile.problem = problem;
    tile.index = row_of_tiles - problem * task.tiles;
    tile.first_row = int64_t{task.reverse ? task.tiles - 1 - tile.index : tile.index} * tile_rows();
    tile.first_column = int64_t{slice} * task.columns;
    tile.origin = (tile.problem * task.segments.length + tile.first_row) * task.width + tile.first_column;
    tile.words = task.look_back + 1 + (tile.problem * task.slices + slice) * task.slice_words;
    tile.size = static_cast<int>(minimum<int64_t>(task.segments.length - tile.first_row, tile_rows()));
    const int64_t live = task.segments.live(tile.problem) - tile.first_row;
    tile.live = static_cast<int>(clamp<int64_t>(live, 0, tile.size));
    tile.columns = static_cast<int>(minimum<int64_t>(task.width - tile.first_column, task.columns));
    tile.lead = task.aligned ? reinterpret_cast<uintptr_t>(leaf_at<0>(task.x, tile.origin)) % 16 / kBytes : 0;
    return tile;
  }

  // Calls visit.operator()<count>(place, offset) for the elements of the tile's first `rows` rows, `count` neighbours
  // at a time. In shared memory they begin at `place`; in the array, at a distance of `offset` from the origin.
  template <typename Visit>
  __device__ __forceinline__ void for_each_copy(int rows, Visit visit) const {
    task.aligned ? for_each_vector<kVector>(rows, visit) : for_each_vector<1>(rows, visit);
  }
  template <int kCount, typename Visit>
  __device__ __forceinline__ void for_each_vector(int rows, Visit visit) const {
    const int thread = threadIdx.x;
    const int elements = rows * task.columns;
    if (task.contiguous) {
      const int first = minimum((kCount - shared.tile.lead) % kCount, elements);
      const int last = first + (elements - first) / kCount * kCount;
#pragma unroll 4
      for (int i = first + thread * kCount; i < last; i += kThreads * kCount) visit.template operator()<kCount>(i, i);
      if constexpr (kCount > 1) {
        if (thread < first) visit.template operator()<1>(thread, thread);
        if (thread < elements - last) visit.template operator()<1>(last + thread, last + thread);
      }
    } else {
      // Each thread copies the same columns of several rows.
      const int first = static_cast<int>(task.row_copies(thread));
      const int along = (thread - first * (task.columns / kCount)) * kCount;
      if (first >= task.copied_rows || along >= shared.tile.columns) return;
      int place = first * task.columns + along;
      int64_t offset = first * task.width + along;
#pragma unroll 4
      for (int row = first; row < rows; row += task.copied_rows) {
        visit.template operator()<kCount>(place, offset);
        place += task.copied_rows * task.columns;
        offset += task.copied_rows * task.width;
      }
    }
  }
  template <int kCount>
  using Word = std::conditional_t<kCount == 1, Leaf, uint4>;

  // The places of the tile's live elements whose rows have a next row in the scan.
  __device__ __forceinline__ Range<int> places_with_next() const {
    const Tile& tile = shared.tile;
    const int end = tile.live * task.columns;
    if (task.reverse) return {tile.first_row == 0 ? task.columns : 0, end};
    return {0, tile.first_row + tile.size >= task.segments.live(tile.problem) ? end - task.columns : end};
  }

  __device__ __forceinline__ void load() const {
    for_each_leaf_of<Element>([&]<int kLeaf>() {
      constexpr bool kOfNext = takes_next<Operator>() && kLeaf == kLeaves - 1;
      Leaf* const to = plane<kLeaf>();
      const int64_t to_next = kOfNext ? task.reverse ? -task.width : task.width : 0;
      const auto* const from = static_cast<const Leaf*>(leaf_at<kLeaf>(task.x, shared.tile.origin + to_next));
      const Range<int> copied = kOfNext ? places_with_next() : Range<int>{};
      for_each_copy(shared.tile.live, [&]<int kCount>(int place, int64_t offset) {
        using Word = Word<kCount>;
        if (kOfNext && (place < copied.begin || place >= copied.end)) {
          *reinterpret_cast<Word*>(to + place) = Word{};
        } else {
          copy_async(reinterpret_cast<Word*>(to + place), reinterpret_cast<const Word*>(from + offset));
        }
      });
    });
    if constexpr (kSegmented) {
      const Tile& tile = shared.tile;
      const int64_t word = tile.first_row / 32;
      const int words = static_cast<int>((tile.first_row + tile.size) / 32 - word) + 1;
      const uint32_t* const from_marks = task.marks + tile.problem * task.mark_words + word;
      for (int i = threadIdx.x; i < words; i += kThreads) copy_async(marks() + i, from_marks + i);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
  }

  // Calls visit(row, element, restarts) for the thread's live rows, in the order of the scan. A forward scan restarts
  // at a head, and a reverse scan at the row before a head.
  template <typename Visit>
  __device__ __forceinline__ void walk(Visit visit) const {
    if (!takes_rows()) return;
    const int live = shared.tile.live;
    const int first_bit = static_cast<int>(shared.tile.first_row % 32);
    const int step = task.reverse ? -1 : 1;
    const int begin = task.reverse ? tile_rows() - 1 - group * kRows : group * kRows;
    const auto row_of = [&](int i) { return begin + i * step; };
    // Loads the marks of `count` rows, in the order of the scan.
    const auto load_marks = [&](int i, int count) {
      if constexpr (kSegmented) {
        const int bit = first_bit + (task.reverse ? row_of(i) - count + 2 : row_of(i));
        const unsigned bits = __funnelshift_r(marks()[bit / 32], marks()[bit / 32 + 1], bit % 32);
        return task.reverse ? __brev(bits) >> (32 - count) : bits;
      } else {
        return 0u;
      }
    };
    const auto visit_rows = [&]<int kCount>(int i) {
      const unsigned bits = load_marks(i, kCount);
      Element loaded[kCount];
#pragma unroll
      for (int j = 0; j < kCount; ++j) loaded[j] = element(row_of(i + j) * task.columns + column);
#pragma unroll
      for (int j = 0; j < kCount; ++j) visit(row_of(i + j), loaded[j], kSegmented && (bits >> j & 1));
    };
    if (live == tile_rows()) {
      visit_rows.template operator()<1>(0);
#pragma unroll 1
      for (int i = 1; i < kRows; i += kStep) visit_rows.template operator()<kStep>(i);
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows; ++i) {
        if (row_of(i) < live) visit_rows.template operator()<1>(i);
      }
    }
  }

  __device__ __forceinline__ Sum sum_rows() const {
    State state = op.identity();
    bool restarted = false;
    const int64_t first_row = shared.tile.first_row;
    walk([&](int row, Element element, bool restarts) {
      const State next = op.extract(element, first_row + row);
      state = choose(restarts, next, op.combine(state, next));
      restarted = restarted || restarts;
    });
    return Sums::make(state, restarted);
  }

  // If there are fewer columns than lanes of a warp, the sums of each warp's groups are joined first. Contains
  // barriers.
  __device__ Prefix<Sum> scan_groups(Sum sum) const {
    const Sums sums{op};
    Sum* const parts = shared.parts;
    const int lane = threadIdx.x % kWarp;
    const bool joins = task.columns < kWarp;
    const int part = joins ? static_cast<int>(threadIdx.x) / kWarp : group;
    const int count = joins ? kWarps : task.groups;
    Sum before_lane = sums.identity();
    if (joins) {
#pragma unroll 1
      for (int distance = task.columns; distance < kWarp; distance *= 2) {
        const Sum below = shuffle_up(sum, distance);
        if (lane >= distance) sum = sums(below, sum);
      }
      const Sum below = shuffle_up(sum, task.columns);
      if (lane >= task.columns) before_lane = below;
    }
    __syncthreads();  // all threads have read the parts of an earlier scan
    if (joins ? lane >= kWarp - task.columns : group < count) parts[part * task.columns + column] = sum;
    __syncthreads();
    Prefix<Sum> prefix{sums.identity(), sums.identity()};
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      if (i == part) prefix.before = prefix.all;
      prefix.all = sums(prefix.all, parts[i * task.columns + column]);
    }
    prefix.before = sums(prefix.before, before_lane);
    return prefix;
  }

  // Word k of a column's slot lies next to word k of the next column's slot.
  __device__ __forceinline__ uint64_t* slot(int64_t i) const {
    return shared.tile.words + i * Slots::kWords * task.columns + column;
  }
  __device__ __forceinline__ void publish(int64_t i, const Sum& sum) const {
    if (group == 0) Slots::publish(slot(i), sum, 1, task.columns);
  }
  // Each group takes neighbouring slots, and loads a few before it waits for the first. Contains barriers.
  template <typename SlotOf>
  __device__ Sum add_slots(int count, SlotOf slot_of) const {
    constexpr int kBatch = Slots::kWords > 2 ? 2 : sizeof(State) > 8 ? 3 : sizeof(State) > 4 ? 4 : 6;
    const Sums sums{op};
    const int share = ceil_div(count, task.groups);
    const int end = minimum(group * share + share, count);
    Sum sum = sums.identity();
#pragma unroll 1
    for (int i = group * share; i < end; i += kBatch) {
      typename Slots::Words loaded[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j < end) loaded[j] = Slots::load(slot(slot_of(i + j)), task.columns);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j < end) sum = sums(sum, Slots::await(slot(slot_of(i + j)), loaded[j], task.columns));
      }
    }
    return scan_groups(sum).all;
  }

  // The sum of all tiles before this one, in the tree of algorithm/look_back.h: the prefix of
  // the earlier spans (kFan^3 tiles each) and, at each level, the sums of the earlier nodes with
  // the same parent. The last tile of a node publishes the node's sum first. Contains barriers.
  __device__ Sum look_back(const Sum& own) const {
    constexpr int kFan = Tree::kFan;
    constexpr int kLists = Tree::kLevels + 1;
    const Sums sums{op};
    const unsigned tile = shared.tile.index;
    publish(tile, own);
    Sum node = own;
    unsigned index = tile;
#pragma unroll 1
    for (int level = 1; level < Tree::kLevels && index % kFan == kFan - 1; ++level) {
      const int64_t first = task.level_slots[level - 1] + index - (kFan - 1);
      node = sums(add_slots(kFan - 1, [&](int i) { return first + i; }), node);
      index /= kFan;
      publish(task.level_slots[level] + index, node);
    }
    const unsigned link = tile / Tree::kSpan;
    int64_t firsts[kLists] = {task.level_slots[Tree::kLevels] + link};
    int ends[kLists] = {link > 0};
    index = tile;
#pragma unroll
    for (int level = 0; level < Tree::kLevels; ++level) {
      ends[Tree::kLevels - level] = static_cast<int>(index % kFan);
      firsts[Tree::kLevels - level] = task.level_slots[level] + index / kFan * kFan;
      index /= kFan;
    }
#pragma unroll
    for (int list = 1; list < kLists; ++list) {
      firsts[list] -= ends[list - 1];
      ends[list] += ends[list - 1];
    }
    const Sum before = add_slots(ends[kLists - 1], [&](int i) {
      int64_t first = firsts[0];
#pragma unroll
      for (int list = 1; list < kLists; ++list) first = i >= ends[list - 1] ? firsts[list] : first;
      return first + i;
    });
    if ((tile + 1) % Tree::kSpan == 0) publish(task.level_slots[Tree::kLevels] + link + 1, sums(before, own));
    return before;
  }

  // A leaf of the results replaces that of the elements in shared memory if it is as wide.
  template <int kLeaf>
  static constexpr bool replaces() {
    if constexpr (IsItem<Result>) {
      return kLeaf < kLeaves && leaf_bytes<Result, kLeaf>() == kBytes;
    } else {
      return kLeaves == 0 && !Operator::kGivesIndex && sizeof(Result) == kBytes;
    }
  }

  // `state` is the state before the thread's rows.
  __device__ __forceinline__ void scan_rows(State state) const {
    const int64_t to = shared.tile.origin + column;
    const int64_t first_row = shared.tile.first_row;
    const auto put = [&](int row, Result result) {
      for_each_leaf_of<Result>([&]<int kLeaf>() {
        if constexpr (replaces<kLeaf>()) {
          Leaf leaf;
          memcpy(&leaf, leaf_of<kLeaf>(result), kBytes);
          plane<kLeaf>()[row * task.columns + column] = leaf;
        } else if constexpr (IsItem<Result>) {
          constexpr int kResultBytes = kLeafBytes<Result, kLeaf>;
          char* const leaves = static_cast<char*>(leaf_array<kLeaf>(task.result));
          store_bytes<kResultBytes>(leaves + (to + row * task.width) * kResultBytes, leaf_of<kLeaf>(result));
        } else {
          task.result.store(to + row * task.width, result);
        }
      });
    };
    walk([&](int row, Element element, bool restarts) {
      const State next = op.extract(element, first_row + row);
      const State before = choose(restarts, op.identity(), state);
      state = choose(restarts, next, op.combine(state, next));
      const State given = choose(task.exclusive, before, state);
      if constexpr (takes_next<Operator>()) {
        put(row, op.finish_with(given, element));
      } else {
        put(row, op.finish(given, 0));
      }
    });
    if (!takes_rows()) return;
    for (int row = shared.tile.live + group; row < shared.tile.size; row += task.groups) put(row, op.dead());
  }

  __device__ __forceinline__ void store_results() const {
    __syncthreads();
    for_each_leaf_of<Result>([&]<int kLeaf>() {
      if constexpr (replaces<kLeaf>()) {
        const Leaf* const from = plane<kLeaf>();
        auto* const to = static_cast<Leaf*>(leaf_array<kLeaf>(task.result)) + shared.tile.origin;
        for_each_copy(shared.tile.size, [&]<int kCount>(int place, int64_t offset) {
          using Word = Word<kCount>;
          *reinterpret_cast<Word*>(to + offset) = *reinterpret_cast<const Word*>(from + place);
        });
      }
    });
  }

  __device__ __forceinline__ void run() const {
    const Sums sums{op};
    load();
    const Prefix<Sum> in_tile = scan_groups(sum_rows());
    const Sum before = task.tiles > 1 ? look_back(in_tile.all) : sums.identity();
    scan_rows(Sums::state(sums(before, in_tile.before)));
    const Tile& tile = shared.tile;
    if (task.totals.given() && tile.index == task.tiles - 1 && group == 0 && column < tile.columns) {
      task.totals.store(tile.problem * task.width + tile.first_column + column,
                        op.finish(Sums::state(sums(before, in_tile.all)), 0));
    }
    store_results();
  }
};

// The least number of blocks on a multiprocessor.
template <typename Operator, bool kSegmented>
constexpr int kBlocks = sizeof(typename Operator::State) > 16  ? 2
                        : sizeof(typename Operator::State) > 8 ? 2 + IsItem<typename Operator::Element>
                        : sizeof(typename Operator::State) > 4 ? 4 - kSegmented
                                                               : 6 - kSegmented;

// kWide is RowScanTiling::wide(), on which nothing depends if elements are numbers.
template <typename Operator, bool kSegmented, bool kWide = false>
__global__ void __launch_bounds__(kThreads, (kBlocks<Operator, kSegmented>))
    scan_tiles(RowScan<Operator> task, Operator op) {
  using Scan = TileScan<Operator, kSegmented, kWide>;
  extern __shared__ uint4 buffer[];
  __shared__ typename Scan::Shared shared;
  const Scan scan(task, op, shared, buffer);
  // Tiles that wait for each other start in the order of tickets.
  if (threadIdx.x == 0) {
    shared.tile = scan.find(task.tiles == 1 ? blockIdx.x : static_cast<unsigned>(draw_ticket(task.look_back)));
  }
  __syncthreads();
  scan.run();
}

}  // namespace mgpu::cuda::row_scanning
