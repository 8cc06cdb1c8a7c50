// Scans rows tile by tile, with persistent blocks.
#pragma once

#include "cuda/block/look_back.cuh"
#include "cuda/device.h"
#include "cuda/ptx.cuh"
#include "ops/scan/problem.cuh"

namespace mgpu::cuda::scanning {

// A block has kWorkers threads, which scan tiles of a few vectors
// per thread, and three warps for the look-back and the tickets.
// A tile is summed up kAhead steps before its look-back starts.
struct TileShape {
  static constexpr int kWorkers = kScanThreads;
  static constexpr int kAhead = 3;
  static constexpr int kBlocks = 2;
  static constexpr int kWarps = kWorkers / kWarp;
  static constexpr int kThreads = kWorkers + 3 * kWarp;
  static constexpr int kStages = kAhead + 3;
  static constexpr int kBytes = kStages * static_cast<int>(kScanTileBytes);
  static constexpr int kStaticBytes = 2048;  // the most bytes of static shared memory
  static_assert(kAhead + 1 >= LookBackLayout::kLevels - 1, "a block must publish all groups before it ends");
};

// A tile in shared memory. Each thread has its own vectors, one in each of kRows rows.
template <typename Element>
struct Staged {
  using Items = Vector<Element>;
  static constexpr int kRows = kScanVectors;
  static constexpr int kBytes = TileShape::kWorkers * kRows * 16;
  static_assert(kBytes == kScanTileBytes);
  char* data;

  __device__ __forceinline__ uint4* vector(int row) const {
    return reinterpret_cast<uint4*>(data) + row * TileShape::kWorkers + threadIdx.x;
  }
  __device__ __forceinline__ void start_copy(int row, const Element* x) const {
    copy_async(vector(row), reinterpret_cast<const uint4*>(x));
  }
  __device__ __forceinline__ void put(int row, int i, const Element& element) const {
    reinterpret_cast<Element*>(vector(row))[i] = element;
  }
  __device__ __forceinline__ Items load(int row) const {
    return Items::load(reinterpret_cast<const Element*>(vector(row)), 0);
  }
};

// The items of a caller's function lie leaf by leaf.
template <IsItem Element>
struct Staged<Element> {
  using Items = Vector<Element>;
  static constexpr ItemShape kShape = item_shape<Element>();
  static constexpr int kRows = kShape.rows();
  static constexpr int kVectors = TileShape::kWorkers * kRows;
  static constexpr int kBytes = kVectors * Items::kItems * kShape.packed;
  char* data;

  template <int kLeaf>
  static constexpr int offset() {
    if constexpr (kLeaf == 0) {
      return 0;
    } else {
      return offset<kLeaf - 1>() + kVectors * Items::kItems * kLeafBytes<Element, kLeaf - 1>;
    }
  }
  template <int kLeaf>
  __device__ __forceinline__ char* vector(int row) const {
    return data + offset<kLeaf>() +
           (row * TileShape::kWorkers + static_cast<int>(threadIdx.x)) * Items::kItems * kLeafBytes<Element, kLeaf>;
  }
  __device__ __forceinline__ void start_copy(int row, const ItemArrays<Element>& x) const {
    for_each_leaf<Element>([&]<int kLeaf>() {
      constexpr int kLeafVector = Items::kItems * kLeafBytes<Element, kLeaf>;
      using Word = typename CopyWord<kCopyBytes<kLeafVector>>::Type;
#pragma unroll
      for (int i = 0; i < kLeafVector / static_cast<int>(sizeof(Word)); ++i) {
        copy_async(reinterpret_cast<Word*>(vector<kLeaf>(row)) + i,
                   reinterpret_cast<const Word*>(x.template at<kLeaf>(0)) + i);
      }
    });
  }
  __device__ __forceinline__ void put(int row, int i, const Element& element) const {
    for_each_leaf<Element>([&]<int kLeaf>() {
      const auto& leaf = Element::template leaf<kLeaf>(element);
      memcpy(vector<kLeaf>(row) + i * sizeof(leaf), leaf, sizeof(leaf));
    });
  }
  __device__ __forceinline__ Items load(int row) const {
    Items items;
    for_each_leaf<Element>([&]<int kLeaf>() {
      using Leaf = std::remove_cvref_t<decltype(Element::template leaf<kLeaf>(items.items[0]))>;
      Leaf leaves[Items::kItems];
      load_bytes<sizeof(leaves)>(leaves, vector<kLeaf>(row));
      items.template set<kLeaf>(leaves);
    });
    return items;
  }
};

// In step k of a block, the workers start to copy tile k + 2 + kAhead to shared memory, sum up tile k + 1 + kAhead, and
// scan tile k; a thread reads only vectors that it copied. Meanwhile one warp publishes the sum as soon as it is
// computed, another ends the look-back of tile k and starts that of tile k + 1, and a third draws a ticket.
//
// A group's sum is published one step after the sum of its
// last tile, and the sum of a group of groups another step
// later.
//
// Blocks never wait for each other in a cycle. Look-backs and groups wait for sums of tiles with earlier tickets, and
// before a block publishes a tile's sum, it waits only for its look-backs and groups of tiles with earlier tickets.
template <typename Operator>
struct TileStream {
  using State = typename Operator::State;
  using Element = typename Operator::Element;
  using Items = Vector<Element>;
  using P = TileShape;
  static constexpr int kVector = Items::kItems;
  static constexpr int kRows = Staged<Element>::kRows;
  static constexpr int kTile = P::kWorkers * kRows * kVector;

  struct Tile : Stretch {
    int64_t index;  // the tile's number in its row, in the order of the scan
  };
  struct Shared {
    Tile tiles[P::kStages + 1];
    State warp_sums[P::kStages][P::kWarps];
    State before_warps[P::kWarps];
  };

  const ScanTask<Operator>& task;
  const Operator& op;
  char* buffers;
  Shared& shared;

  __device__ static int warp() { return threadIdx.x / kWarp; }
  __device__ static int lane() { return threadIdx.x % kWarp; }
  __device__ auto combine() const {
    return [this](const State& a, const State& b) { return op.combine(a, b); };
  }
  __device__ Tile& tile(int k) const { return shared.tiles[static_cast<unsigned>(k) % (P::kStages + 1)]; }
  __device__ State* warp_sums(int k) const { return shared.warp_sums[static_cast<unsigned>(k) % P::kStages]; }
  __device__ bool exists(int k) const { return tile(k).row < task.segments.rows; }
  __device__ uint64_t* slots(const Tile& tile) const {
    return task.look_back + 1 + tile.row * LookBackLayout{task.tiles}.words(sizeof(State));
  }

  __device__ __forceinline__ Tile find(int64_t ticket) const {
    const Segments& segments = task.segments;
    Tile tile;
    tile.row = segments.rows == 1 ? ticket >= task.tiles : ticket / task.tiles;
    tile.index = ticket - tile.row * task.tiles;
    const int64_t offset = (task.is_reverse() ? task.tiles - 1 - tile.index : tile.index) * kTile;
    const int64_t live = tile.row < segments.rows ? segments.live(tile.row) : 0;
    tile.begin = tile.row * segments.length + offset;
    tile.size = static_cast<int>(minimum<int64_t>(segments.length - offset, kTile));
    tile.live = static_cast<int>(clamp<int64_t>(live - offset, 0, tile.size));
    tile.whole = task.aligned && tile.live == kTile;
    return tile;
  }

  __device__ __forceinline__ int place(int row) const {
    const int offset = (warp() * kRows * kWarp + lane()) * kVector;
    const int first = task.is_reverse() ? kTile - kVector - offset : offset;
    return first + row * (task.is_reverse() ? -kVector * kWarp : kVector * kWarp);
  }
  __device__ __forceinline__ Staged<Element> staged(int k) const {
    return {buffers + static_cast<unsigned>(k) % P::kStages * Staged<Element>::kBytes};
  }

  __device__ __forceinline__ void start_copy(int k) const {
    const auto x = task.x + tile(k).begin;
    const auto to = staged(k);
    if (tile(k).whole) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) to.start_copy(row, x + place(row));
    } else {
      const int live = tile(k).live;
#pragma unroll 1
      for (int row = 0; row < kRows; ++row) {
        for (int i = 0; i < kVector && place(row) + i < live; ++i) to.put(row, i, x[place(row) + i]);
      }
    }
  }

  __device__ __forceinline__ void sum(int k) const {
    State state;
    if constexpr (Operator::kCommutes) {
      state = fold_warp(lane_sum(k), combine());
    } else {
      state = tile(k).whole ? sum_in_order<true>(k) : sum_in_order<false>(k);
    }
    if (lane() == 0) warp_sums(k)[warp()] = state;
  }

  // Combines a vector's items in the order of the scan.
  template <bool kWhole>
  __device__ __forceinline__ State vector_sum(int k, int row) const {
    const int64_t begin = tile(k).begin;
    Items items = staged(k).load(row);
    if (task.is_reverse()) mirror(items.items);
    const auto extract = [&](int i) {
      const int at = place(row) + (task.is_reverse() ? kVector - 1 - i : i);
      return kWhole || at < tile(k).live ? op.extract(items.items[i], begin + at) : op.identity();
    };
    State sum = extract(0);
#pragma unroll
    for (int i = 1; i < kVector; ++i) sum = op.combine(sum, extract(i));
    return sum;
  }

  // Combines the warp's items row by row, in the order of the scan. In whole tiles, the sums of all rows are folded at
  // once.
  template <bool kWhole>
  __device__ __forceinline__ State sum_in_order(int k) const {
    if constexpr (!kWhole) {
      State sum = op.identity();
#pragma unroll 1
      for (int row = 0; row < kRows; ++row) sum = op.combine(sum, fold_warp(vector_sum<false>(k, row), combine()));
      return sum;
    } else {
      State sums[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[row] = vector_sum<true>(k, row);
#pragma unroll 1
      for (int distance = 1; distance < kWarp; distance *= 2) {
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[row] = op.combine(sums[row], shuffle_down(sums[row], distance));
      }
#pragma unroll
      for (int row = 1; row < kRows; ++row) sums[0] = op.combine(sums[0], sums[row]);
      return sums[0];
    }
  }

  // The combination of the lane's items, in the order of memory.
  __device__ __forceinline__ State lane_sum(int k) const {
    const int64_t begin = tile(k).begin;
    Gathered<Operator> gathered(op, begin);
    const auto row_of = [&](int i) { return task.is_reverse() ? kRows - 1 - i : i; };
    if (tile(k).whole) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) gathered.take(staged(k).load(row_of(i)).items, place(row_of(i)));
    } else {
      const int live = tile(k).live;
#pragma unroll 1
      for (int i = 0; i < kRows; ++i) {
        const Items items = staged(k).load(row_of(i));
        const int first = place(row_of(i));
#pragma unroll
        for (int item = 0; item < kVector; ++item) {
          const Element one[1] = {items.items[item]};
          if (first + item < live) gathered.take(one, first + item);
        }
      }
    }
    return gathered.state();
  }

  __device__ __forceinline__ State warp_sum(int k) const {
    return lane() < P::kWarps ? warp_sums(k)[lane()] : op.identity();
  }
  __device__ __forceinline__ void publish(int k) const {
    publish_tile(slots(tile(k)), tile(k).index, fold_warp(warp_sum(k), combine()));
  }
  __device__ __forceinline__ void publish_groups(int k, int level) const {
    publish_group<State>(slots(tile(k)), task.tiles, tile(k).index, level, combine());
  }

  __device__ __forceinline__ LoadedSums<State> start_look_back(int k) const {
    return load_sums<State>(slots(tile(k)), task.tiles, tile(k).index);
  }
  // Finds the prefix before each warp's part of a tile.
  __device__ __forceinline__ void end_look_back(int k, const LoadedSums<State>& loaded) const {
    const Tile& tile = this->tile(k);
    const auto in_tile = scan_warp<false, kRareUnroll<Operator>>(op, warp_sum(k), 0);
    const State preceding =
        prefix_of(slots(tile), task.tiles, tile.index, loaded, in_tile.all, op.identity(), combine());
    const State before = task.begun(op, tile.row, preceding);
    if (lane() < P::kWarps) shared.before_warps[lane()] = op.combine(before, in_tile.before);
    if (lane() == 0 && task.totals.given() && tile.index == task.tiles - 1) {
      task.totals.store(tile.row, op.finish(op.combine(before, in_tile.all), tile.row * task.segments.length));
    }
  }

  __device__ __forceinline__ void scan(int k) const {
    const Stretch tile = this->tile(k);
    State sum = shared.before_warps[warp()];
    const auto scan_as = [&]<bool kWhole, bool kReverse>() {
      constexpr int kUnroll = kWhole ? kRows : 1;
#pragma unroll kUnroll
      for (int row = 0; row < kRows; ++row) {
        scan_vectors<kWhole, kReverse>(task, op, tile, place(row), staged(k).load(row), sum);
      }
    };
    const auto scan_in = [&]<bool kReverse>() {
      tile.whole ? scan_as.template operator()<true, kReverse>() : scan_as.template operator()<false, kReverse>();
    };
    if constexpr (requires { Operator::kReverse; }) {
      scan_in.template operator()<Operator::kReverse>();
    } else {
      task.reverse ? scan_in.template operator()<true>() : scan_in.template operator()<false>();
    }
  }
};

// Not all blocks of the grid need to be resident.
template <typename Operator>
__global__ void __launch_bounds__(TileShape::kThreads, sizeof(typename Operator::State) > 16 ? 1 : TileShape::kBlocks)
    scan_tiles(ScanTask<Operator> task, Operator op) {
  using P = TileShape;
  using Stream = TileStream<Operator>;
  if constexpr (!may_grant(P::kBytes + P::kStaticBytes)) return __trap();
  extern __shared__ uint4 buffers[];
  __shared__ typename Stream::Shared shared;
  static_assert(IsItem<typename Operator::Element> || sizeof(shared) <= P::kStaticBytes);
  const Stream stream{task, op, reinterpret_cast<char*>(buffers), shared};
  const int warp = threadIdx.x / kWarp;
  const bool draws = threadIdx.x == P::kThreads - 1;
  if (draws) stream.tile(0) = stream.find(draw_ticket(task.look_back));
  __syncthreads();

  // The numbers of named barriers, at which one side arrives without waiting.
  constexpr int kSummed = 1;
  constexpr int kFound = 2;
  constexpr int kMeeting = P::kWorkers + kWarp;
  constexpr int kCopied = P::kAhead + 2;
  constexpr int kAdded = P::kAhead + 1;
  LoadedSums<typename Operator::State> loaded;
  for (int k = -kCopied; k < 0 || stream.exists(k); ++k) {
    const auto has = [&](int tile) { return tile >= 0 && stream.exists(tile); };
    if (warp < P::kWarps) {
      if (stream.exists(k + kCopied)) stream.start_copy(k + kCopied);
      copy_commit();
      copy_wait<1>();
      if (has(k + kAdded)) stream.sum(k + kAdded);
      barrier_arrive(kSummed, kMeeting);
      barrier_sync(kFound, kMeeting);
      if (k >= 0) stream.scan(k);
    } else if (warp == P::kWarps) {
      if (k >= 0) stream.end_look_back(k, loaded);
      barrier_arrive(kFound, kMeeting);
      if (has(k + 1)) loaded = stream.start_look_back(k + 1);
    } else if (warp == P::kWarps + 1) {
      barrier_sync(kSummed, kMeeting);
      if (has(k + kAdded)) stream.publish(k + kAdded);
      constexpr int kUnroll = kRareUnroll<Operator>;
#pragma unroll kUnroll
      for (int level = 1; level < LookBackLayout::kLevels; ++level) {
        if (has(k + kAdded - level)) stream.publish_groups(k + kAdded - level, level);
      }
    } else if (draws) {
      stream.tile(k + kCopied + 1) = stream.find(draw_ticket(task.look_back));
    }
    __syncthreads();
  }
}

}  // namespace mgpu::cuda::scanning
