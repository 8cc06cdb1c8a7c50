// scan on CUDA, in one pass over memory, by three kernels that read vectors of 16 bytes: tiles of rows that are long,
// whole rows that are not, and what restarts anywhere else. A warp's items lie in rows of 32 vectors, each scanned by
// shuffles where it was loaded, so nothing is transposed through shared memory.
#include "cuda/cta/copy_async.cuh"
#include "cuda/cta/look_back.cuh"
#include "cuda/cta/scan.cuh"
#include "cuda/cta/vectors.cuh"
#include "cuda/launch.cuh"
#include "operands/scan.h"
#include "operations.h"

namespace mgpu {

namespace cuda {
namespace {

constexpr int kThreads = ScanOperands::kThreads;
constexpr int kWarps = kThreads / kWarp;

// The segmented kernel's tile: as many items as keep their states in registers. Offsets in a tile are counted in the
// order of the scan; in a reverse scan that is from the end of its memory.
template <typename Operator>
struct Shape {
  static constexpr int kVector = Vector<typename Operator::Element>::kItems;
  static constexpr int kItems =
      ScanOperands::items_per_thread(sizeof(typename Operator::State), sizeof(typename Operator::Element));
  static constexpr int kRows = kItems / kVector;
  static constexpr int kTile = kThreads * kItems;
  static_assert(kRows * kVector == kItems && kItems <= 32);

  // The offset of a thread's vector in row `row`.
  __device__ __forceinline__ static int offset(int row) {
    const int warp = threadIdx.x / kWarp;
    return (warp * kItems + row * kVector) * kWarp + static_cast<int>(threadIdx.x) % kWarp * kVector;
  }
};

// Its blocks on an SM, as many as the registers allow without a spill.
template <typename Operator>
constexpr int kBlocks = sizeof(typename Operator::State) > 4 || sizeof(typename Operator::Element) == 1 ? 2 : 3;

template <typename Operator>
struct ScanTask {
  const typename Operator::Element* x;
  bool aligned;  // x, result
  bool exclusive;
  bool reverse;
  Segments segments;
  Segments restarts;      // without counts: a dead item changes nothing, and needs no segment of its own
  int64_t tiles;          // of a look-back
  uint64_t* look_back;    // a ticket counter, then the slots of each row
  const int64_t* listed;  // the listed heads before each tile's first cut
  ResultVector<Operator> result;
  ResultVector<Operator> totals;  // null if not asked for
};

// The listed heads before each tile, by a warp. A forward scan restarts at a head, a reverse one after it.
__global__ void __launch_bounds__(kThreads)
    list_heads(Segments segments, int64_t tiles, int tile_items, bool reverse, int64_t* listed) {
  const int64_t tile = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (tile > tiles) return;
  const int64_t heads = segments.listed_from(tile * tile_items + reverse, [](auto begin, auto end, auto before) {
    return warp_partition_point(begin, end, before);
  });
  if (threadIdx.x % kWarp == 0) listed[tile] = heads;
}

template <typename Operator>
__global__ void fill_totals(ResultVector<Operator> totals, int64_t rows, Operator op) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < rows) totals.store(row, op.finish(op.identity(), 0));
}

// Marks the restarts of the tile that begins at `begin`, a byte a position, in the order of the scan.
template <int kTile>
__device__ void mark_restarts(uint8_t* restarts, const Segments& segments, int64_t begin, Range<int64_t> listed,
                              bool reverse) {
  const int64_t first = begin + reverse;
  segments.mark_heads({first, minimum(first + kTile, segments.total())}, listed, threadIdx.x, kThreads,
                      [&](int64_t position) {
                        const int i = static_cast<int>(position - first);
                        restarts[reverse ? kTile - 1 - i : i] = 1;
                      });
}

// The marks of a vector as bits.
template <int kVector>
__device__ __forceinline__ unsigned restart_bits(const uint8_t* restarts) {
  using Word = std::conditional_t<kVector == 2, uint16_t, uint32_t>;
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < kVector; i += sizeof(Word)) {
    const unsigned marks = *reinterpret_cast<const Word*>(restarts + i);
#pragma unroll
    for (int byte = 0; byte < static_cast<int>(sizeof(Word)); ++byte) bits |= (marks >> (8 * byte) & 1) << (i + byte);
  }
  return bits;
}

// Stores a vector of results.
template <typename Operator, int kVector>
__device__ __forceinline__ void store_results(const ResultVector<Operator>& to, int64_t position,
                                              const typename Operator::Result (&results)[kVector]) {
  if constexpr (Operator::kGivesIndex) {
    if (!to.wide) {
      int32_t narrow[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) narrow[k] = static_cast<int32_t>(results[k]);
      return store_vector(static_cast<int32_t*>(to.data), position, narrow);
    }
  }
  store_vector(static_cast<typename Operator::Result*>(to.data), position, results);
}

// The items of an array that a warp or a block scans, all of one row.
struct Stretch {
  int64_t row;
  int64_t begin;  // its first item in memory
  int size;
  int live;    // the items from here on are dead
  bool whole;  // all of them are live, and vectors are aligned
};

template <typename T, int kCount>
__device__ __forceinline__ void mirror(T (&items)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount / 2; ++k) {
    const T item = items[k];
    items[k] = items[kCount - 1 - k];
    items[kCount - 1 - k] = item;
  }
}

// Scans a row of a warp's vectors, of which the thread's begins at `place` in the stretch, and stores the results.
// `sum` is the combination of all items before the row, and then also of the row's.
template <bool kWhole, bool kReverse, typename Operator>
__device__ __forceinline__ void scan_vectors(const ScanTask<Operator>& task, const Operator& op, const Stretch& stretch,
                                             int place, const Vector<typename Operator::Element>& vector,
                                             typename Operator::State& sum) {
  using State = typename Operator::State;
  constexpr int kVector = Vector<typename Operator::Element>::kItems;
  const auto is_live = [&](int k) { return kWhole || (place + k >= 0 && place + k < stretch.live); };
  State states[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    states[k] = is_live(k) ? op.extract(vector.items[k], stretch.begin + place + k) : op.identity();
  }
  if (kReverse) mirror(states);
#pragma unroll
  for (int k = 1; k < kVector; ++k) states[k] = op.combine(states[k - 1], states[k]);
  const auto in_row = scan_warp<false>(op, states[kVector - 1], 0);
  const State before = op.combine(sum, in_row.before);
  sum = op.combine(sum, in_row.all);

  const int64_t row_begin = stretch.row * task.segments.length;
  typename Operator::Result results[kVector];
  State previous = before;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const State next = op.combine(before, states[k]);
    results[k] = op.finish(task.exclusive ? previous : next, row_begin);
    previous = next;
  }
  if (kReverse) mirror(results);
  if constexpr (kWhole) {
    store_results(task.result, stretch.begin + place, results);
  } else {
#pragma unroll
    for (int k = 0; k < kVector; ++k) results[k] = is_live(k) ? results[k] : op.dead();
    if (task.aligned && place >= 0 && place + kVector <= stretch.size) {
      return store_results(task.result, stretch.begin + place, results);
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (place + k >= 0 && place + k < stretch.size) task.result.store(stretch.begin + place + k, results[k]);
    }
  }
}

// How the kernel of tiles is cut: its workers scan tiles of some vectors a thread, summed up kAhead steps before their
// look-backs start. Two blocks fill a multiprocessor's shared memory and its registers.
struct TileShape {
  static constexpr int kWorkers = 256;
  static constexpr int kRows = ScanOperands::kVectorsPerThread;
  static constexpr int kAhead = 3;
  static constexpr int kBlocks = 2;
  static constexpr int kWarps = kWorkers / kWarp;
  static constexpr int kThreads = kWorkers + 3 * kWarp;
  static constexpr int kTileBytes = kWorkers * kRows * 16;
  static constexpr int kStages = kAhead + 3;
  static constexpr int kBytes = kStages * kTileBytes;
  static constexpr int kStaticBytes = 2048;  // at most
  static_assert(kTileBytes == ScanOperands::kTileBytes);
  static_assert(kAhead + 1 >= LookBackLayout::kLevels - 1, "a block is to publish all groups before it ends");
};

// A block's way through tiles, by the numbers of tickets. In step k its workers start to copy tile k + 2 + kAhead to
// shared memory, sum up tile k + 1 + kAhead, and scan tile k; a thread reads only vectors that it copied. Meanwhile one
// warp publishes the sum as soon as it is there, one ends the look-back of tile k and starts that of tile k + 1, and
// one draws a ticket.
//
// When a tile looks back, the tiles before it, which other blocks drew at about the same time, were published some
// steps ago, so there is hardly anything to wait for. For the same reason a group's sum is published a step after its
// last tile's, and that of a group of groups another step later: at once, each step would wait for the slowest of 32
// blocks, which takes 0.39 ms in place of 0.28 for 2^27 floats.
//
// Nor can blocks wait for each other in a circle. Look-backs and groups wait for sums of tiles with earlier tickets,
// and a tile's sum is published after the block's look-backs and groups of tiles with earlier tickets.
template <typename Operator>
struct TileStream {
  using State = typename Operator::State;
  using Element = typename Operator::Element;
  using Items = Vector<Element>;
  using P = TileShape;
  static constexpr int kVector = Items::kItems;
  static constexpr int kTile = P::kWorkers * P::kRows * kVector;

  struct Tile : Stretch {
    int64_t index;  // in its row, in the order of the scan
  };
  struct Shared {
    Tile tiles[P::kStages + 1];
    State warp_sums[P::kStages][P::kWarps];
    State before_warps[P::kWarps];
  };

  const ScanTask<Operator>& task;
  const Operator& op;
  uint4* buffers;
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
    const int64_t offset = (task.reverse ? task.tiles - 1 - tile.index : tile.index) * kTile;
    const int64_t live = tile.row < segments.rows ? segments.live(tile.row) : 0;
    tile.begin = tile.row * segments.length + offset;
    tile.size = static_cast<int>(minimum<int64_t>(segments.length - offset, kTile));
    tile.live = static_cast<int>(clamp<int64_t>(live - offset, 0, tile.size));
    tile.whole = task.aligned && tile.live == kTile;
    return tile;
  }

  // Where the thread's vector in row `row` of a tile begins: in the tile's memory, and in shared memory.
  __device__ __forceinline__ int place(int row) const {
    const int offset = (warp() * P::kRows * kWarp + lane()) * kVector;
    const int first = task.reverse ? kTile - kVector - offset : offset;
    return first + row * (task.reverse ? -kVector * kWarp : kVector * kWarp);
  }
  __device__ __forceinline__ uint4* vector(int k, int row) const {
    return buffers + (static_cast<unsigned>(k) % P::kStages * P::kRows + row) * P::kWorkers + threadIdx.x;
  }
  __device__ __forceinline__ Items load(int k, int row) const {
    return Items::load(reinterpret_cast<const Element*>(vector(k, row)), 0);
  }

  __device__ __forceinline__ void start_copy(int k) const {
    const Element* const x = task.x + tile(k).begin;
    if (tile(k).whole) {
#pragma unroll
      for (int row = 0; row < P::kRows; ++row) {
        copy_async(vector(k, row), reinterpret_cast<const uint4*>(x + place(row)));
      }
    } else {
      const int live = tile(k).live;
#pragma unroll 1
      for (int row = 0; row < P::kRows; ++row) {
        Element* const items = reinterpret_cast<Element*>(vector(k, row));
        for (int i = 0; i < kVector && place(row) + i < live; ++i) items[i] = x[place(row) + i];
      }
    }
  }

  // Sums up the warps' parts of a tile, in the order of memory.
  __device__ __forceinline__ void sum(int k) const {
    const int64_t begin = tile(k).begin;
    Gathered<Operator> gathered(op, begin);
    const auto row_of = [&](int i) { return task.reverse ? P::kRows - 1 - i : i; };
    if (tile(k).whole) {
#pragma unroll
      for (int i = 0; i < P::kRows; ++i) gathered.take(load(k, row_of(i)).items, begin + place(row_of(i)));
    } else {
      const int live = tile(k).live;
#pragma unroll 1
      for (int i = 0; i < P::kRows; ++i) {
        const Items items = load(k, row_of(i));
        const int first = place(row_of(i));
#pragma unroll
        for (int item = 0; item < kVector; ++item) {
          const Element one[1] = {items.items[item]};
          if (first + item < live) gathered.take(one, begin + first + item);
        }
      }
    }
    const State state = fold_warp(gathered.state(), combine());
    if (lane() == 0) warp_sums(k)[warp()] = state;
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
  // Finds what comes before each warp's part of a tile.
  __device__ __forceinline__ void end_look_back(int k, const LoadedSums<State>& loaded) const {
    const Tile& tile = this->tile(k);
    const auto in_tile = scan_warp<false>(op, warp_sum(k), 0);
    const State before = prefix_of(slots(tile), task.tiles, tile.index, loaded, in_tile.all, op.identity(), combine());
    if (lane() < P::kWarps) shared.before_warps[lane()] = op.combine(before, in_tile.before);
    if (lane() == 0 && task.totals.data && tile.index == task.tiles - 1) {
      task.totals.store(tile.row, op.finish(op.combine(before, in_tile.all), tile.row * task.segments.length));
    }
  }

  __device__ __forceinline__ void scan(int k) const {
    const Stretch tile = this->tile(k);
    State sum = shared.before_warps[warp()];
    const auto scan_as = [&]<bool kWhole, bool kReverse>() {
#pragma unroll
      for (int row = 0; row < P::kRows; ++row) {
        scan_vectors<kWhole, kReverse>(task, op, tile, place(row), load(k, row), sum);
      }
    };
    if (tile.whole) {
      task.reverse ? scan_as.template operator()<true, true>() : scan_as.template operator()<true, false>();
    } else {
      task.reverse ? scan_as.template operator()<false, true>() : scan_as.template operator()<false, false>();
    }
  }
};

// A barrier of `threads` threads, some of which only announce what they wrote, while the others wait for it.
__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Scans rows by their tiles. The grid need not be resident as a whole.
template <typename Operator>
__global__ void __launch_bounds__(TileShape::kThreads, TileShape::kBlocks)
    scan_tiles(ScanTask<Operator> task, Operator op) {
  using P = TileShape;
  using Stream = TileStream<Operator>;
  extern __shared__ uint4 buffers[];
  __shared__ typename Stream::Shared shared;
  static_assert(sizeof(shared) <= P::kStaticBytes);
  const Stream stream{task, op, buffers, shared};
  const int warp = threadIdx.x / kWarp;
  const bool draws = threadIdx.x == P::kThreads - 1;
  if (draws) stream.tile(0) = stream.find(draw_ticket(task.look_back));
  __syncthreads();

  // Barriers that one side passes without waiting.
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
#pragma unroll
      for (int level = 1; level < LookBackLayout::kLevels; ++level) {
        if (has(k + kAdded - level)) stream.publish_groups(k + kAdded - level, level);
      }
    } else if (draws) {
      stream.tile(k + kCopied + 1) = stream.find(draw_ticket(task.look_back));
    }
    __syncthreads();
  }
}

// Whether a block may have the shared memory of tiles: not before sm_80.
bool has_shared_tiles(const Call& call) {
  int device = 0, bytes = 0;
  check(call, cudaGetDevice(&device));
  check(call, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes >= TileShape::kBytes + TileShape::kStaticBytes;
}

// The blocks of scan_rows on an SM, as many as the registers allow.
template <typename Operator>
constexpr int kRowBlocks = sizeof(typename Operator::Element) == 1                                              ? 1
                           : Vector<typename Operator::Element>::kItems * sizeof(typename Operator::State) > 32 ? 2
                                                                                                                : 3;

// Scans rows of which each is a warp's, while the next vectors, of this row or the warp's next one, are on their way.
template <typename Operator>
__global__ void __launch_bounds__(kThreads, kRowBlocks<Operator>) scan_rows(ScanTask<Operator> task, Operator op) {
  using Items = Vector<typename Operator::Element>;
  constexpr int kVector = Items::kItems;
  constexpr int kRows = ScanOperands::kVectorsPerThread;
  constexpr int kSpan = kWarp * kVector;  // of a row of vectors
  const Segments& segments = task.segments;
  const int lane = threadIdx.x % kWarp;
  const int length = static_cast<int>(segments.length);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  struct At {
    int64_t row;
    int offset;  // in the order of the scan
  };
  const auto place = [&](int offset) {
    return task.reverse ? length - kVector - offset - lane * kVector : offset + lane * kVector;
  };
  const auto load = [&](const At& at, Items(&items)[kRows]) {
    if (at.row >= segments.rows) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int first = place(at.offset + r * kSpan);
      if (first >= 0 && first < length) items[r] = Items::load(task.x + at.row * length, first);
    }
  };

  At at{(int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp, 0};
  Items next[kRows];
  load(at, next);
  typename Operator::State sum = op.identity();
  while (at.row < segments.rows) {
    const bool ends = at.offset + kRows * kSpan >= length;
    const At after = ends ? At{at.row + warps, 0} : At{at.row, at.offset + kRows * kSpan};
    Items items[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) items[r] = next[r];
    load(after, next);
    const Stretch row{at.row, at.row * length, length, static_cast<int>(segments.live(at.row)), false};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int offset = at.offset + r * kSpan;
      if (offset >= length) break;
      const bool whole = offset + kSpan <= length && (task.reverse ? length - offset : offset + kSpan) <= row.live;
      const int first = place(offset);
      if (whole) {
        task.reverse ? scan_vectors<true, true>(task, op, row, first, items[r], sum)
                     : scan_vectors<true, false>(task, op, row, first, items[r], sum);
      } else {
        task.reverse ? scan_vectors<false, true>(task, op, row, first, items[r], sum)
                     : scan_vectors<false, false>(task, op, row, first, items[r], sum);
      }
    }
    if (ends) {
      if (task.totals.data && lane == 0) task.totals.store(at.row, op.finish(sum, row.begin));
      sum = op.identity();
    }
    at = after;
  }
}

// Scans with restarts at heads and at the start of each row, by tiles on a grid over all rows.
template <typename Operator>
__global__ void __launch_bounds__(kThreads, kBlocks<Operator>) scan_segments(ScanTask<Operator> task, Operator op) {
  using State = typename Operator::State;
  using Element = typename Operator::Element;
  using Shape = Shape<Operator>;
  using Sums = Sums<Operator, true>;
  using Sum = typename Sums::Value;
  constexpr int kRows = Shape::kRows;
  constexpr int kVector = Shape::kVector;
  __shared__ int64_t ticket;
  __shared__ alignas(16) uint8_t restarts[Shape::kTile];
  __shared__ Sum warp_sums[kWarps];
  __shared__ Sum shared_before;

  const Segments& segments = task.segments;
  const Sums sums{op};
  for (int i = threadIdx.x; i < Shape::kTile / 16; i += kThreads) reinterpret_cast<uint4*>(restarts)[i] = uint4{};
  const int64_t tile = take_ticket(task.look_back, ticket);  // in the order of the scan
  const int64_t tile_in_memory = task.reverse ? task.tiles - 1 - tile : tile;
  const int64_t begin = tile_in_memory * Shape::kTile;

  // Places in the tile's memory, from here on: those from `live` on are dead, and, with a count a row and several rows
  // in a tile, so may others be.
  const bool mixes_rows = segments.rows > 1;
  const bool counts_by_item = mixes_rows && segments.counts.data;
  const bool knows_rows = mixes_rows && (task.totals.data || Operator::kGivesIndex);
  const int size = static_cast<int>(minimum<int64_t>(segments.total() - begin, Shape::kTile));
  const int live = mixes_rows ? size : static_cast<int>(clamp<int64_t>(segments.live(0) - begin, 0, size));
  const bool whole = task.aligned && live == Shape::kTile && !counts_by_item;
  const auto is_live = [&](int place) {
    if (!counts_by_item || place >= live) return place < live;
    const int64_t row = segments.row(begin + place);
    return begin + place - row * segments.length < segments.live(row);
  };
  const auto place_of = [&](int row) {  // the first in memory of the thread's vector
    const int offset = Shape::offset(row);
    return task.reverse ? Shape::kTile - kVector - offset : offset;
  };

  // Load.
  const Element* const x = task.x + begin;
  State states[kRows][kVector];
  if (whole) {
    Vector<Element> vectors[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) vectors[row] = Vector<Element>::load(x, place_of(row));
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int mirrored = kVector - 1 - k;
        states[row][k] = op.extract(task.reverse ? vectors[row].items[mirrored] : vectors[row].items[k],
                                    begin + place_of(row) + (task.reverse ? mirrored : k));
      }
    }
  } else {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int place = place_of(row) + (task.reverse ? kVector - 1 - k : k);
        states[row][k] = is_live(place) ? op.extract(x[place], begin + place) : op.identity();
      }
    }
  }
  unsigned heads = 0;  // bit row * kVector + k: the thread's item restarts the scan
  mark_restarts<Shape::kTile>(restarts, task.restarts, begin,
                              {task.listed[tile_in_memory], task.listed[tile_in_memory + 1]}, task.reverse);
  __syncthreads();
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    heads |= restart_bits<kVector>(restarts + Shape::offset(row)) << (row * kVector);
  }
  const auto heads_up_to = [&](int row, int k) {  // of a vector's items 0 .. k
    return heads >> (row * kVector) & ((2u << k) - 1);
  };

  // Scan each vector, each row, the warp's rows.
  Sum warp_sum = sums.identity();
  State before_vector[kRows];
  unsigned open = 0;  // bit row: nothing in the warp restarts before the thread's vector
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int k = 1; k < kVector; ++k) {
      const State sum = op.combine(states[row][k - 1], states[row][k]);
      states[row][k] = heads_up_to(row, k) >> k ? states[row][k] : sum;
    }
    const unsigned restarting = __ballot_sync(0xffffffffu, heads_up_to(row, kVector - 1) != 0);
    const auto in_row = scan_warp<true>(op, states[row][kVector - 1], restarting);
    const Sum before = sums(warp_sum, in_row.before);
    before_vector[row] = Sums::state(before);
    if (!Sums::restarted(before)) open |= 1u << row;
    warp_sum = sums(warp_sum, in_row.all);
  }

  // The tile's sum, and what comes before the tile.
  const auto in_block = scan_warps<kWarps>(warp_sums, warp_sum, sums.identity(), sums);
  if (threadIdx.x < kWarp) {
    const Sum before_tile = look_back(task.look_back + 1, task.tiles, tile, in_block.all, sums.identity(), sums);
    if (threadIdx.x == 0) {
      shared_before = before_tile;
      if (task.totals.data && !mixes_rows && tile == task.tiles - 1) {
        task.totals.store(0, op.finish(Sums::state(sums(before_tile, in_block.all)), 0));
      }
    }
  }
  __syncthreads();
  const State before_warp = Sums::state(sums(shared_before, in_block.before));

  // Finish and store.
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int first = place_of(row);
    const State before = open >> row & 1 ? op.combine(before_warp, before_vector[row]) : before_vector[row];
    typename Operator::Result results[kVector];
    State previous = before;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const State sum = heads_up_to(row, k) ? states[row][k] : op.combine(before, states[row][k]);
      const State kept = !task.exclusive ? sum : heads_up_to(row, k) >> k ? op.identity() : previous;
      previous = sum;
      const int place = first + (task.reverse ? kVector - 1 - k : k);
      int64_t row_begin = 0;
      if (knows_rows && place < size) {
        const int64_t row_of_item = segments.row(begin + place);
        row_begin = row_of_item * segments.length;
        const int64_t last = task.reverse ? 0 : maximum<int64_t>(segments.live(row_of_item), 1) - 1;
        if (task.totals.data && begin + place - row_begin == last) {
          task.totals.store(row_of_item, op.finish(sum, row_begin));
        }
      }
      results[k] = op.finish(kept, row_begin);
    }
    typename Operator::Result placed[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) placed[k] = task.reverse ? results[kVector - 1 - k] : results[k];
    if (whole) {
      store_results(task.result, begin + first, placed);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int place = first + k;
        if (place < size) task.result.store(begin + place, is_live(place) ? placed[k] : op.dead());
      }
    }
  }
}

// The kernel of a path, and its launch.
template <ScanOperands::Path kPath, typename Operator>
void launch(const Call& call, const ScanOperands& operands, const Operator& op, CUstream_st* stream) {
  using State = typename Operator::State;
  using Path = ScanOperands::Path;
  const Segments& segments = operands.segments;
  Workspace workspace(call.results.back().data, call.results.back().size());
  const auto scratch = operands.layout(workspace, sizeof(State));
  const auto tiles = operands.tiles(kPath, sizeof(State));
  Segments restarts = segments;
  restarts.counts = {};
  const ScanTask<Operator> task{static_cast<const typename Operator::Element*>(operands.x),
                                is_aligned(operands.x) && is_aligned(operands.result),
                                operands.exclusive,
                                operands.reverse,
                                segments,
                                restarts,
                                tiles.per_row,
                                scratch.look_back,
                                scratch.listed,
                                {operands.result, operands.wide_result},
                                {operands.totals, operands.wide_result}};
  if constexpr (kPath == Path::kWarpByRow) {
    // Warps of several rows have the next one loaded ahead; blocks of many would drift apart: a grid 16 times as large
    // as what is resident takes 0.266 ms for 2^17 rows of 1000 floats, a resident one 0.287.
    const auto kernel = scan_rows<Operator>;
    const int64_t blocks = ceil_div<int64_t>(segments.rows, kWarps);
    const int resident = resident_blocks(call, kernel, kThreads, 0, blocks);
    kernel<<<static_cast<unsigned>(minimum<int64_t>(blocks, 16 * resident)), kThreads, 0, stream>>>(task, op);
    return check_launch(call);
  }
  check(call, cudaMemsetAsync(scratch.look_back, 0, tiles.look_back_words() * sizeof(uint64_t), stream));
  if constexpr (kPath == Path::kTilesByRow) {
    const auto kernel = scan_tiles<Operator>;
    allow_shared(call, kernel, TileShape::kBytes);
    const int blocks = resident_blocks(call, kernel, TileShape::kThreads, TileShape::kBytes, tiles.count());
    kernel<<<blocks, TileShape::kThreads, TileShape::kBytes, stream>>>(task, op);
  } else {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>((tiles.count() + 1) * kWarp, kThreads));
    list_heads<<<blocks, kThreads, 0, stream>>>(segments, tiles.count(), Shape<Operator>::kTile, operands.reverse,
                                                scratch.listed);
    check_launch(call);
    scan_segments<<<static_cast<unsigned>(tiles.count()), kThreads, 0, stream>>>(task, op);
  }
  check_launch(call);
}

}  // namespace

void scan(const Call& call, CUstream_st* stream) {
  using Path = ScanOperands::Path;
  const ScanOperands operands(call);
  const Segments& segments = operands.segments;
  if (segments.total() == 0) {
    if (!operands.totals || segments.rows == 0) return;
    return operands.dispatch<true>(call, [&](auto op) {
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(segments.rows, kThreads));
      const ResultVector<decltype(op)> totals{operands.totals, operands.wide_result};
      fill_totals<<<blocks, kThreads, 0, stream>>>(totals, segments.rows, op);
      check_launch(call);
    });
  }
  const bool aligned = is_aligned(operands.x) && is_aligned(operands.result);
  const bool fits = operands.path() == Path::kTilesByRow ? has_shared_tiles(call) : aligned;
  const Path path = fits ? operands.path() : Path::kSegments;
  const auto launch_whole = [&](auto op) {
    path == Path::kWarpByRow ? launch<Path::kWarpByRow>(call, operands, op, stream)
                             : launch<Path::kTilesByRow>(call, operands, op, stream);
  };
  // Sums have kernels of their own in the forms that matter most; products share the segmented one.
  if (path != Path::kSegments && operands.kind == OperatorKind::kAdd) {
    return dispatch_arithmetic<ArithmeticKind::kSum>(call, operands.dtype, false, launch_whole);
  }
  operands.dispatch<true>(call, [&](auto op) {
    if constexpr (!requires { op.multiply; }) {
      if (path != Path::kSegments) return launch_whole(op);
    }
    launch<Path::kSegments>(call, operands, op, stream);
  });
}

}  // namespace cuda

}  // namespace mgpu
