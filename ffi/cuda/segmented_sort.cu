// segmented_sort on CUDA. Tiles on a fixed grid are sorted within segments by a block each; then, in rounds, runs of
// tiles are merged within the segments that cross tiles. A tile with nothing to merge in a round is not touched.
#include <cub/block/block_scan.cuh>

#include "algorithm/serial_merge.h"
#include "cuda/cta/copy_run.cuh"
#include "cuda/cta/segmented_merge.cuh"
#include "cuda/cta/tile_heads.cuh"
#include "cuda/launch.cuh"
#include "operands/segmented_sort.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

constexpr int64_t kNowhere = int64_t{1} << 62;

// Keys, or their codes between rounds, and payload in device memory.
template <typename Order, typename Payload>
struct Buffer {
  typename Order::Word* keys;
  Payload* payload;
};

template <typename Order, typename Payload>
struct Problem {
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  static constexpr TileShape kShape = tile_shape(sizeof(typename Order::Word));
  static constexpr int kTile = kShape.threads * kShape.items;
  // Blocks that a multiprocessor should hold: caps registers where that costs no spill.
  static constexpr int kBlocksPerProcessor =
      (sizeof(typename Order::Word) == 4 ? 5 : 3) - (kHasPayload ? sizeof(Payload) / 4 : 0);

  Order order;
  Segments segments;
  int64_t total;
  int64_t tiles;
  Buffer<Order, Payload> input;
  // A segment that takes r rounds starts in buffers[r % 2] and alternates, so it ends in buffers[0], the output, and
  // nothing is ever copied.
  Buffer<Order, Payload> buffers[2];
  TileDescriptor* descriptors;
  int* rounds;       // the most rounds that any segment takes
  MergePlan* plans;  // of the tiles with something to merge in this round, in no order
  int* planned;      // how many, for each round

  __device__ Payload input_payload(int64_t position) const {
    if (input.payload) return input.payload[position];
    return static_cast<Payload>(position - segments.row(position) * segments.length);
  }

  __device__ int tile_size(int64_t tile) const {
    return static_cast<int>(minimum<int64_t>(kTile, total - tile * kTile));
  }
};

// ---- The segments that cross tiles
// ------------------------------------------------------------------------------------

__device__ TileDescriptor described(Range<int64_t> segment, int64_t listed, int tile_width, int* most_rounds) {
  const int rounds = group_rounds<int64_t>(segment, tile_width);
  if (rounds > *most_rounds) atomicMax(most_rounds, rounds);
  return {segment, listed, segment.begin / tile_width, rounds};
}

// From heads: a warp a tile, two searches.
__global__ void describe_tiles(Segments segments, int64_t tiles, int tile_width, TileDescriptor* descriptors,
                               int* rounds) {
  const int64_t tile = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (tile > tiles) return;
  const auto find = [](auto begin, auto end, auto before) { return warp_partition_point(begin, end, before); };
  const int64_t position = tile * tile_width;
  Range<int64_t> segment{kNowhere, kNowhere};
  if (tile < tiles) segment = segments.segment_of(position, find);
  const int64_t listed = segments.listed_from(position, find);
  if (threadIdx.x % kWarp == 0) descriptors[tile] = described(segment, listed, tile_width, rounds);
}

// From flags, first step: a warp a tile finds its first head past the start (in `end`) and its last head (in `begin`),
// -1 where there is none; `listed` says whether the tile's start is a head.
__global__ void find_tile_heads(Segments segments, int64_t tiles, int tile_width, TileDescriptor* descriptors) {
  const int64_t tile = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (tile > tiles) return;
  const int lane = threadIdx.x % kWarp;
  const Range<int64_t> range{tile * tile_width, minimum<int64_t>((tile + 1) * tile_width, segments.total())};
  int64_t inner = kNowhere, last = -1;
  bool at_start = tile == tiles;
  if (tile < tiles) {
    segments.mark_heads(range, {0, 0}, lane, kWarp, [&](int64_t position) {
      if (position == range.begin)
        at_start = true;
      else
        inner = minimum(inner, position);
      last = maximum(last, position);
    });
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    inner = minimum(inner, __shfl_xor_sync(0xffffffffu, inner, offset));
    last = maximum(last, __shfl_xor_sync(0xffffffffu, last, offset));
  }
  at_start = __any_sync(0xffffffffu, at_start);
  if (lane == 0) descriptors[tile] = {{last, inner}, at_start, 0, 0};
}

struct Maximum {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return maximum(a, b); }
};
struct Minimum {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return minimum(a, b); }
};

// From flags, second step: one block carries the last head to the right and the next head to the left over all tiles.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    connect_tiles(int64_t total, int64_t tiles, int tile_width, TileDescriptor* descriptors, int* rounds) {
  using Scan = cub::BlockScan<int64_t, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t last = 0;  // the last head left of this batch of tiles
  for (int64_t base = 0; base < tiles; base += kThreads) {
    const int64_t tile = base + threadIdx.x;
    const bool inside = tile < tiles;
    int64_t before, batch_last;
    Scan(storage).ExclusiveScan(inside ? descriptors[tile].segment.begin : -1, before, int64_t{-1}, Maximum{},
                                batch_last);
    if (inside) descriptors[tile].segment.begin = descriptors[tile].listed ? tile * tile_width : maximum(before, last);
    last = maximum(last, batch_last);
    __syncthreads();
  }
  int64_t next = total;  // the first head right of this batch of tiles
  for (int64_t base = 0; base < tiles; base += kThreads) {
    const int64_t tile = tiles - 1 - base - threadIdx.x;
    const bool inside = tile >= 0;
    TileDescriptor descriptor{{0, kNowhere}, 0, 0, 0};
    if (inside) descriptor = descriptors[tile];
    const int64_t first = descriptor.listed ? tile * tile_width : descriptor.segment.end;
    int64_t after, batch_first;
    Scan(storage).ExclusiveScan(inside ? first : kNowhere, after, kNowhere, Minimum{}, batch_first);
    if (inside) {
      descriptor.segment.end = minimum(descriptor.segment.end, minimum(after, next));
      descriptors[tile] = described(descriptor.segment, 0, tile_width, rounds);
    }
    next = minimum(next, batch_first);
    __syncthreads();
  }
  if (threadIdx.x == 0) descriptors[tiles] = {{kNowhere, kNowhere}, 0, 0, 0};
}

// ---- Sorting a tile
// -----------------------------------------------------------------------------------------------------

template <typename Word, bool kIndexed>
struct Item {
  Word code;
  int from;
};
template <typename Word>
struct Item<Word, false> {
  Word code;
};

// Sorts a thread's items within segments; `heads` has a bit for each item that starts one.
template <int kItems, typename Order, typename Entry>
__device__ void sort_items(Entry (&items)[kItems], const Order& order, unsigned heads) {
  const auto less = [&](const Entry& a, const Entry& b) { return order.less(a.code, b.code); };
  if (__any_sync(0xffffffffu, heads & ~1u)) {
    odd_even_sort(items, less, [&](int i) { return (heads >> i) & 1; });
  } else if constexpr (Order::kTotal && sizeof(Entry) == sizeof(typename Order::Word)) {
    typename Order::Word codes[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) codes[i] = items[i].code;
    network_sort(codes);
#pragma unroll
    for (int i = 0; i < kItems; ++i) items[i].code = codes[i];
  } else {
    odd_even_sort(items, less, [](int) { return false; });
  }
}

template <typename Order, typename Payload>
struct SortShared {
  using Shape = Problem<Order, Payload>;
  using Heads = TileHeads<Shape::kShape.threads, Shape::kShape.items>;
  typename Order::Word codes[Shape::kTile + 1];
  uint16_t from[Shape::kHasPayload ? Shape::kTile + 1 : 1];
  typename Heads::Shared heads;
};

// One block sorts one tile, each segment's part on its own: threads sort their items, then merge runs of threads.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kShape.threads, Problem<Order, Payload>::kBlocksPerProcessor)
    sort_tiles(const __grid_constant__ Problem<Order, Payload> problem) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kItems = P::kShape.items;
  constexpr int kThreads = P::kShape.threads;
  using Heads = typename SortShared<Order, Payload>::Heads;
  extern __shared__ __align__(16) unsigned char storage[];
  auto& shared = *reinterpret_cast<SortShared<Order, Payload>*>(storage);

  const int64_t tile = blockIdx.x;
  const int64_t origin = tile * P::kTile;
  const int size = problem.tile_size(tile);
  const Order order = problem.order;
  const auto less = [&](Word a, Word b) { return order.less(a, b); };
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = i * kThreads + threadIdx.x;
    if (position < size) shared.codes[position] = order.encode(problem.input.keys[origin + position]);
  }
  const TileDescriptor descriptor = problem.descriptors[tile];
  const TileDescriptor next = problem.descriptors[tile + 1];
  Heads::mark(shared.heads, problem.segments, origin, size, {descriptor.listed, next.listed});
  const typename Heads::Thread thread = Heads::of_thread(shared.heads, size);

  const int begin = threadIdx.x * kItems;
  Item<Word, P::kHasPayload> items[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    items[i].code = shared.codes[begin + i];
    if constexpr (P::kHasPayload) items[i].from = begin + i;
  }
  sort_items(items, order, thread.heads);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    shared.codes[begin + i] = items[i].code;
    if constexpr (P::kHasPayload) shared.from[begin + i] = static_cast<uint16_t>(items[i].from);
  }

  const int first_rounds = merge_rounds(thread.first, kItems);
  const int last_rounds = merge_rounds(thread.last, kItems);
  const int rounds = maximum(first_rounds, last_rounds);
  for (int round = 0; __syncthreads_or(round < rounds); ++round) {
    Word taken[kItems];
    uint32_t from[kItems];
    uint16_t moved[P::kHasPayload ? kItems : 1];
    if (round < rounds) {
      MergeCursor first = stay_cursor(begin);
      MergeCursor last = first;
      if (round < first_rounds) {
        const MergePair<int> pair = merge_pair(thread.first, kItems, int(threadIdx.x), round);
        if (pair.middle < pair.end) {
          first = merge_cursor(shared.codes, pair.begin, pair.middle, pair.end, begin - pair.begin, less);
        }
      }
      if (round < last_rounds) {
        const MergePair<int> pair = merge_pair(thread.last, kItems, int(threadIdx.x), round);
        if (pair.middle < pair.end) last = {pair.begin, pair.middle, pair.middle, pair.end};
      }
      const bool one = thread.one_segment();
      if (__any_sync(__activemask(), !one)) {
        take_merged(shared.codes, begin, first, one ? P::kTile : thread.first.end, last,
                    one ? P::kTile : thread.last.begin, less, taken, from);
      } else {
        take_merged(shared.codes, first, less, taken, from);
      }
      if constexpr (P::kHasPayload) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) moved[i] = shared.from[position_of(from[i], shared.codes)];
      }
    }
    __syncthreads();
    if (round < rounds) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        shared.codes[begin + i] = taken[i];
        if constexpr (P::kHasPayload) shared.from[begin + i] = moved[i];
      }
    }
  }

  // The segments that cross the tile's edges start in the buffer from which their rounds end in the output, as codes.
  const int64_t first_end = descriptor.segment.end - origin;
  const int64_t last_begin = next.segment.begin - origin;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int position = i * kThreads + threadIdx.x;
    const int rounds = position < first_end ? descriptor.rounds : position >= last_begin ? next.rounds : 0;
    if (position < size) {
      const Word code = shared.codes[position];
      problem.buffers[rounds % 2].keys[origin + position] = rounds == 0 ? order.decode(code) : code;
    }
  }
  if constexpr (P::kHasPayload) {
    Payload payload[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (position < size) payload[i] = problem.input_payload(origin + shared.from[position]);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      const int rounds = position < first_end ? descriptor.rounds : position >= last_begin ? next.rounds : 0;
      if (position < size) problem.buffers[rounds % 2].payload[origin + position] = payload[i];
    }
  }
}

// ---- Merging runs of tiles
// ----------------------------------------------------------------------------------------------

// The runs of a segment that have outputs in a tile. The data are codes.
template <typename Order, typename Payload>
struct TileGroup {
  using P = Problem<Order, Payload>;
  bool active;
  int source;  // buffer
  bool last_round;
  MergeGroup<int64_t> group;

  __device__ TileGroup(const TileDescriptor& of, int64_t tile, int round)
      : active(round < of.rounds),
        source((of.rounds - round) & 1),
        last_round(round + 1 == of.rounds),
        group(merge_group<int64_t>(of.segment, of.first_tile, P::kTile, tile, round)) {}

  // What the merge takes from the runs, between two splits, for the outputs from `begin` on. `at` is the first free
  // place in shared memory, and moves on. An item lies there where it lies within its chunk in device memory.
  __device__ MergePiece piece(const P& problem, int begin, int end, const int64_t* split_begin,
                              const int64_t* split_end, int& at) const {
    MergePiece piece;
    piece.begin = begin;
    piece.source = static_cast<int16_t>(source);
    piece.decode = last_round;
    const auto* const codes = problem.buffers[source].keys;
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      // Runs out of order, from heads that contradict each other, may give splits out of order: stay inside the runs.
      const int64_t first = split_begin ? minimum(split_begin[k], group.length(k)) : 0;
      const int64_t last = split_end ? minimum(split_end[k], group.length(k)) : group.length(k);
      const int count = static_cast<int>(clamp<int64_t>(last - first, 0, maximum(end - begin, 0)));
      const int64_t position = group.bounds[k] + first;
      at = round_up_to_chunk<typename Order::Word>(at) + place_in_chunk(codes, position);
      piece.at[k] = static_cast<uint16_t>(at);
      piece.count[k] = static_cast<uint16_t>(count);
      piece.from[k] = position - at;
      at += count;
      begin += count;
    }
    piece.end = begin;
    return piece;
  }
};

constexpr int kPlanThreads = 256;

// Each edge is split by a few lanes: a sample a lane, four of each run. Fewer samples take more steps, more samples
// more instructions in all: 2^26 random keys take 15 steps in the last round, 31 with two samples, 14 with eight.
constexpr int kSamples = 4;
constexpr int kSplitLanes = kRuns * kSamples;
constexpr int kPlanEdges = kPlanThreads / kSplitLanes;
constexpr int kPlanTiles = kPlanEdges - 1;  // a block's; tiles share the edges between them

// How many items each run gives to the first `rank` of a group, by kSplitLanes neighbouring lanes, each of which gets
// the answer; all lanes of the warp take part.
template <typename Index, typename Order>
__device__ void split_runs(const Order& order, const typename Order::Word* codes, const MergeGroup<int64_t>& group,
                           int64_t rank, int64_t (&answer)[kRuns]) {
  using Word = typename Order::Word;
  constexpr unsigned kGroup = (1u << kSplitLanes) - 1;
  const int lane = threadIdx.x % kSplitLanes;
  const int shift = threadIdx.x % kWarp - lane;
  const int run = lane / kSamples;
  const int s = lane % kSamples;
  const auto pick = [&](const auto& values) {
    return run == 0 ? values[0] : run == 1 ? values[1] : run == 2 ? values[2] : values[3];
  };
  Index lengths[kRuns];
#pragma unroll
  for (int j = 0; j < kRuns; ++j) lengths[j] = static_cast<Index>(group.length(j));
  RunSplit<Index, kSamples> split(lengths, static_cast<Index>(rank));
  const Word* const own = codes + pick(group.bounds);
  for (;;) {
    const Index begin = pick(split.begin);
    const Index end = pick(split.end);
    const bool open = begin < end;
    if (!__any_sync(0xffffffffu, open)) break;
    const Word code = open ? own[split.sample(begin, end, s)] : Word{0};
    const int verdict = split.judge(
        run, s, code,
        [&](int j, int other) {
          return static_cast<Word>(__shfl_sync(0xffffffffu, code, shift + j * kSamples + other));
        },
        [&](Word a, Word b) { return order.less(a, b); });
    const unsigned in = __ballot_sync(0xffffffffu, open && verdict > 0);
    const unsigned out = __ballot_sync(0xffffffffu, open && verdict < 0);
    if ((in | out) == 0) break;  // runs that are not sorted
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      constexpr unsigned kOfRun = (1u << kSamples) - 1;
      split.narrow(j, __popc((in >> shift & kGroup) >> (j * kSamples) & kOfRun),
                   __popc((out >> shift & kGroup) >> (j * kSamples) & kOfRun));
    }
  }
  split.finish(lengths);
#pragma unroll
  for (int j = 0; j < kRuns; ++j) answer[j] = split.begin[j];
}

// Up to this many bytes of codes, a segment over one edge is merged by its edge's warp as it plans: in the merge
// kernel, edges crossed by a few items each took 0.16 ms for 2^26 keys.
constexpr int kShortBytes = 2560;

template <typename Order>
__device__ bool is_short(const TileDescriptor& of) {
  return of.rounds == 1 && of.segment.size() <= kShortBytes / static_cast<int>(sizeof(typename Order::Word));
}

// Merges a short segment over one tile's edge in one go: each item's place is its place in its own part plus its rank
// in the other. By one warp, with room for the segment's codes.
template <typename Order, typename Payload>
__device__ void merge_by_rank(const Problem<Order, Payload>& problem, Range<int64_t> segment, int64_t edge,
                              typename Order::Word* codes) {
  const Buffer<Order, Payload>& source = problem.buffers[1];
  const Buffer<Order, Payload>& target = problem.buffers[0];
  const Order order = problem.order;
  const auto less = [&](auto a, auto b) { return order.less(a, b); };
  const auto code_at = [&](int i) { return codes[i]; };
  const int size = static_cast<int>(segment.size());
  const int a_count = static_cast<int>(edge - segment.begin);
  __syncwarp();  // the warp's last merge has read them
  for (int i = threadIdx.x % kWarp; i < size; i += kWarp) codes[i] = source.keys[segment.begin + i];
  __syncwarp();
  for (int i = threadIdx.x % kWarp; i < size; i += kWarp) {
    const int place = i < a_count ? i + lower_bound(a_count, size, code_at, codes[i], less) - a_count
                                  : i - a_count + upper_bound(0, a_count, code_at, codes[i], less);
    target.keys[segment.begin + place] = order.decode(codes[i]);
    if constexpr (Problem<Order, Payload>::kHasPayload) {
      target.payload[segment.begin + place] = source.payload[segment.begin + i];
    }
  }
}

// Plans the tiles that have something to merge in this round. The edges between tiles are split first: an edge's split
// is where the one tile ends and the next begins.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(kPlanThreads, 4)
    plan_tiles(const __grid_constant__ Problem<Order, Payload> problem, int round) {
  using P = Problem<Order, Payload>;
  constexpr int kWarps = kPlanThreads / kWarp;
  __shared__ typename Order::Word short_codes[kWarps][kShortBytes / sizeof(typename Order::Word)];
  __shared__ int64_t splits[kPlanEdges][kRuns];
  if (round >= *problem.rounds) return;
  const int64_t first_tile = blockIdx.x * int64_t{kPlanTiles};
  {
    const int edge = threadIdx.x / kSplitLanes;
    const int64_t tile = minimum(first_tile + edge, problem.tiles);
    const TileDescriptor of = problem.descriptors[tile];
    const TileGroup<Order, Payload> at(of, tile, round);
    MergeGroup<int64_t> group{};
    int64_t rank = 0;
    if (at.active && !is_short<Order>(of) && at.group.begin() < tile * P::kTile) {
      group = at.group;
      rank = tile * P::kTile - group.begin();
    }
    int64_t split[kRuns];
    const auto* const codes = problem.buffers[at.source].keys;
    if (__any_sync(0xffffffffu, group.end() - group.begin() > (int64_t{1} << 30))) {
      split_runs<int64_t>(problem.order, codes, group, rank, split);
    } else {
      split_runs<int>(problem.order, codes, group, rank, split);
    }
    if (threadIdx.x % kSplitLanes == 0) {
#pragma unroll
      for (int j = 0; j < kRuns; ++j) splits[edge][j] = split[j];
    }
  }
  if (round == 0) {
    for (int edge = threadIdx.x / kWarp; edge < kPlanTiles; edge += kWarps) {
      const int64_t tile = first_tile + edge;
      if (tile >= problem.tiles) break;
      const TileDescriptor of = problem.descriptors[tile];
      if (is_short<Order>(of) && of.segment.begin < tile * P::kTile) {
        merge_by_rank(problem, of.segment, tile * P::kTile, short_codes[threadIdx.x / kWarp]);
      }
    }
  }
  __syncthreads();
  const int64_t tile = first_tile + threadIdx.x;
  if (threadIdx.x >= kPlanTiles || tile >= problem.tiles) return;
  const int64_t origin = tile * P::kTile;
  const int64_t tile_end = origin + problem.tile_size(tile);
  const TileDescriptor left_of = problem.descriptors[tile];
  const TileDescriptor right_of = problem.descriptors[tile + 1];
  const bool other = right_of.segment.begin < tile_end && right_of.segment.begin >= left_of.segment.end;
  const TileGroup<Order, Payload> left(left_of, tile, round);
  const TileGroup<Order, Payload> right(right_of, tile, round);
  const bool left_active = left.active && !is_short<Order>(left_of);
  const bool right_active = right.active && other && !is_short<Order>(right_of);
  if (!left_active && !right_active) return;
  MergePlan plan{origin, {{0, 0}, {P::kTile, 0}}};
  int at = 0;
  if (left_active) {
    plan.pieces[0] = left.piece(problem, 0, static_cast<int>(minimum(tile_end, left.group.end()) - origin),
                                left.group.begin() < origin ? splits[threadIdx.x] : nullptr,
                                left.group.end() > tile_end ? splits[threadIdx.x + 1] : nullptr, at);
  }
  if (right_active) {
    plan.pieces[1] = right.piece(problem, static_cast<int>(right.group.begin() - origin),
                                 static_cast<int>(minimum(tile_end, right.group.end()) - origin), nullptr,
                                 right.group.end() > tile_end ? splits[threadIdx.x + 1] : nullptr, at);
  }
  problem.plans[atomicAdd(&problem.planned[round], 1)] = plan;
}

constexpr int kPlanSlots = 4;  // three are in use: the tile's, the next one's, and the one's after it

template <typename Order, typename Payload>
struct MergeShared {
  using Shape = Problem<Order, Payload>;
  // Each run starts within a chunk of its own, and may end within one; a merge reads on past the end of its runs.
  static constexpr int kPadding = 2 * kRuns * 2 * (kChunkBytes / sizeof(typename Order::Word)) + Shape::kShape.items;
  alignas(kChunkBytes) typename Order::Word codes[2][(Shape::kTile + kPadding + 15) / 16 * 16];
  uint16_t from[Shape::kHasPayload ? Shape::kTile + Shape::kShape.items : 1];
  MergePlan plans[kPlanSlots];
};

// Calls visit(i) for each of a thread's strided positions i * threads + thread that lie in [begin, end). Most tiles are
// whole, and then nothing is compared.
template <TileShape kShape, typename Visit>
__device__ void for_strided(int begin, int end, Visit visit) {
  if (begin == 0 && end == kShape.threads * kShape.items) {
#pragma unroll
    for (int i = 0; i < kShape.items; ++i) visit(i);
  } else {
#pragma unroll
    for (int i = 0; i < kShape.items; ++i) {
      const int position = i * kShape.threads + threadIdx.x;
      if (position >= begin && position < end) visit(i);
    }
  }
}

// Where in device memory an item of a piece lies, given its place in shared memory, or where a chunk of `granule` items
// does. In registers: shared memory would be read again after every copy.
struct PieceSource {
  int at[kRuns];
  int64_t from[kRuns];

  __device__ explicit PieceSource(const MergePiece& piece, int granule = 1) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      at[k] = piece.at[k] / granule * granule;
      from[k] = piece.from[k];
    }
  }
  __device__ int64_t operator()(int place) const {
    return place + (place < at[2] ? (place < at[1] ? from[0] : from[1]) : (place < at[3] ? from[2] : from[3]));
  }
};

template <typename Order, typename Payload>
__device__ void load_tile(const Problem<Order, Payload>& problem, const MergePiece (&pieces)[2],
                          typename Order::Word* codes) {
  using Word = typename Order::Word;
  constexpr int kItems = kChunkBytes / sizeof(Word);
#pragma unroll 1
  for (const MergePiece& piece : pieces) {
    if (piece.begin >= piece.end) continue;
    const Word* const keys = problem.buffers[piece.source].keys;
    const PieceSource source(piece, kItems);
    const int end = piece.at[kRuns - 1] + piece.count[kRuns - 1];
    const uint64_t whole_chunks = problem.total - kItems + 1;  // a tile to merge is longer than a chunk
#pragma unroll 1
    for (int at = piece.at[0] / kItems * kItems + threadIdx.x * kItems; at < end;
         at += Problem<Order, Payload>::kShape.threads * kItems) {
      const int64_t from = source(at);
      if (static_cast<uint64_t>(from) < whole_chunks) {
        copy_async(reinterpret_cast<uint4*>(codes + at), reinterpret_cast<const uint4*>(keys + from));
      } else {  // a chunk across the array's edge
        for (int i = 0; i < kItems; ++i) {
          if (from + i >= 0 && from + i < problem.total) codes[at + i] = keys[from + i];
        }
      }
    }
  }
}

// Stores the merged codes, and fetches the payload from where the codes came from.
template <typename Order, typename Payload>
__device__ void store_tile(const Problem<Order, Payload>& problem, const MergePlan& plan,
                           const typename Order::Word* codes, const uint16_t* from) {
  using P = Problem<Order, Payload>;
  constexpr TileShape kShape = P::kShape;
  const Order order = problem.order;
#pragma unroll 1
  for (const MergePiece& piece : plan.pieces) {
    if (piece.begin >= piece.end) continue;
    const Buffer<Order, Payload> source = problem.buffers[piece.source];
    const Buffer<Order, Payload> target = problem.buffers[1 - piece.source];
    auto* const keys = target.keys + plan.origin + threadIdx.x;
    const bool decode = piece.decode;
    for_strided<kShape>(piece.begin, piece.end, [&](int i) {
      const auto code = codes[i * kShape.threads + threadIdx.x];
      keys[i * kShape.threads] = decode ? order.decode(code) : code;
    });
    if constexpr (P::kHasPayload) {
      auto* const payload = target.payload + plan.origin + threadIdx.x;
      const PieceSource place(piece);
      Payload fetched[kShape.items];
      for_strided<kShape>(piece.begin, piece.end,
                          [&](int i) { fetched[i] = source.payload[place(from[i * kShape.threads + threadIdx.x])]; });
      for_strided<kShape>(piece.begin, piece.end, [&](int i) { payload[i * kShape.threads] = fetched[i]; });
    }
  }
}

// The merges of two runs in shared memory that make a tile: of runs 0 and 1 and of runs 2 and 3 of each piece, and on
// the second level of the two results.
struct TileMerges {
  const MergePiece (&pieces)[2];
  bool second_level;
  int begins[4];  // where the outputs of each begin; a second-level merge is the first of its piece

  __device__ TileMerges(const MergePiece (&pieces)[2], bool second_level) : pieces(pieces), second_level(second_level) {
    constexpr int kNever = 1 << 24;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      begins[2 * p] = pieces[p].begin;
      begins[2 * p + 1] = second_level ? kNever : middle(pieces[p]);
    }
    if (second_level) begins[1] = begins[2];
  }
  __device__ static int middle(const MergePiece& piece) { return piece.begin + piece.count[0] + piece.count[1]; }

  // The merge that makes output i. On the second level 1 and 2 are both the right piece's.
  __device__ int at(int i) const { return (begins[1] <= i) + (begins[2] <= i) + (begins[3] <= i); }
  __device__ int begin(int merge) const {
    return merge == 0 ? begins[0] : merge == 1 ? begins[1] : merge == 2 ? begins[2] : begins[3];
  }
  // Where the next merge begins.
  __device__ int end(int merge) const {
    return merge == 0 ? begins[1] : merge == 1 ? begins[2] : merge == 2 ? begins[3] : 1 << 24;
  }
  __device__ MergeCursor runs(int merge) const {
    const MergePiece& piece = pieces[second_level ? merge > 0 : merge / 2];
    if (second_level) return {piece.begin, middle(piece), middle(piece), piece.end};
    const int run = merge % 2 * 2;
    return {piece.at[run], piece.at[run] + piece.count[run], piece.at[run + 1],
            piece.at[run + 1] + piece.count[run + 1]};
  }
};

// Takes a thread's outputs, from `begin` on. Those outside the pieces are of no meaning.
template <int kTile, int kItems, typename Word, typename Less>
__device__ void take_outputs(const TileMerges& merges, const Word* codes, int begin, Less less, Word (&taken)[kItems],
                             uint32_t (&from)[kItems]) {
  constexpr int kStride = 1 << (ceil_log2(kTile / 2 + 1) - 1);  // the shorter run has at most half of the tile
  int merge = merges.at(begin);
  const MergeCursor runs = merges.runs(merge);
  const int most = runs.a_end - runs.a + runs.b_end - runs.b;
  const MergeCursor start = shared_cursor<kStride>(codes, runs, minimum(begin - merges.begin(merge), most), less);
  take_merged(codes, start, less, taken, from);
  // Where other merges begin among the thread's outputs, it takes the rest of them again.
  for (int other = merges.end(merge); other < begin + kItems; other = merges.end(merge)) {
    merge = merges.at(other);
    MergeHeads<Word> heads(codes, merges.runs(merge));
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (begin + i >= other) take_head(heads, less, taken[i], from[i]);
    }
  }
}

// Whether a piece is merged after the first level: nothing comes from runs 0 and 1, or nothing from runs 2 and 3.
__device__ inline bool is_one_merge(const MergePiece& piece) {
  return piece.count[0] + piece.count[1] == 0 || piece.count[2] + piece.count[3] == 0;
}

// Merges a tile in shared memory. Gives each item's place there before, in `shared_from`.
template <typename Order, typename Payload>
__device__ void merge_tile(const Problem<Order, Payload>& problem, const MergePiece (&pieces)[2],
                           typename Order::Word* codes, uint16_t* shared_from) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kItems = P::kShape.items;
  const Order order = problem.order;
  const auto less = [&](Word a, Word b) { return order.less(a, b); };
  const int begin = threadIdx.x * kItems;
  const bool takes = begin < pieces[0].end || (begin + kItems > pieces[1].begin && begin < pieces[1].end);
  const int levels = is_one_merge(pieces[0]) && is_one_merge(pieces[1]) ? 1 : 2;
#pragma unroll 1
  for (int level = 0; level < levels; ++level) {
    Word taken[kItems];
    uint32_t from[kItems];
    if (takes) {
      take_outputs<P::kTile>(TileMerges(pieces, level == 1), codes, begin, less, taken, from);
      if constexpr (P::kHasPayload) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const int place = position_of(from[i], codes);
          from[i] = level == 0 ? place : shared_from[place];
        }
      }
    }
    __syncthreads();
    if (takes) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        codes[begin + i] = taken[i];
        if constexpr (P::kHasPayload) shared_from[begin + i] = static_cast<uint16_t>(from[i]);
      }
    }
    __syncthreads();
  }
}

__device__ inline void load_plan(const MergePlan* plan, MergePlan* shared) {
  constexpr int kWords = sizeof(MergePlan) / sizeof(uint64_t);
  if (threadIdx.x >= kWords) return;
  copy_async(reinterpret_cast<uint64_t*>(shared) + threadIdx.x, reinterpret_cast<const uint64_t*>(plan) + threadIdx.x);
}

// One round: as many blocks as the device holds take the planned tiles in turn. While a tile is merged, the next one
// and the plan of the one after it are on their way to shared memory.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kShape.threads, Problem<Order, Payload>::kBlocksPerProcessor)
    merge_tiles(const __grid_constant__ Problem<Order, Payload> problem, int round) {
  extern __shared__ __align__(16) unsigned char storage[];
  auto& shared = *reinterpret_cast<MergeShared<Order, Payload>*>(storage);
  const int turns = ceil_div(problem.planned[round] - static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  if (turns <= 0) return;
  const MergePlan* const plans = problem.plans + blockIdx.x;
  const auto slot = [&](int turn) -> MergePlan& { return shared.plans[turn % kPlanSlots]; };
  load_plan(plans, &slot(0));
  if (turns > 1) load_plan(plans + gridDim.x, &slot(1));
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  load_tile(problem, slot(0).pieces, shared.codes[0]);
  copy_commit();
  for (int turn = 0; turn < turns; ++turn) {
    copy_wait<0>();
    __syncthreads();
    if (turn + 1 < turns) load_tile(problem, slot(turn + 1).pieces, shared.codes[(turn + 1) % 2]);
    if (turn + 2 < turns) load_plan(plans + (turn + 2) * int64_t{gridDim.x}, &slot(turn + 2));
    copy_commit();
    merge_tile(problem, slot(turn).pieces, shared.codes[turn % 2], shared.from);
    store_tile(problem, slot(turn), shared.codes[turn % 2], shared.from);
  }
}

template <typename Order, typename Payload>
void run(const Call& call, const SegmentedSortOperands& operands, Order order, cudaStream_t stream) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  const Array& scratch_array = call.results.back();
  Workspace workspace(scratch_array.data, scratch_array.bytes());
  const SegmentedSortOperands::Scratch scratch = operands.layout(workspace);
  const auto buffer = [](const void* keys, const void* payload) {
    return Buffer<Order, Payload>{static_cast<Word*>(const_cast<void*>(keys)),
                                  static_cast<Payload*>(const_cast<void*>(payload))};
  };
  P problem{order,
            operands.segments,
            operands.segments.total(),
            ceil_div<int64_t>(operands.segments.total(), P::kTile),
            buffer(operands.keys, operands.payload),
            {buffer(operands.sorted_keys, operands.sorted_payload), buffer(scratch.keys, scratch.payload)},
            scratch.tiles,
            scratch.rounds,
            scratch.plans,
            scratch.rounds + 1};

  check(call, cudaMemsetAsync(scratch.rounds, 0, SegmentedSortOperands::kCounters * sizeof(int), stream));
  constexpr int kDescribeThreads = 128;
  const int64_t describe_blocks = ceil_div<int64_t>(problem.tiles + 1, kDescribeThreads / kWarp);
  if (operands.segments.has_flags()) {
    find_tile_heads<<<describe_blocks, kDescribeThreads, 0, stream>>>(operands.segments, problem.tiles, P::kTile,
                                                                      problem.descriptors);
    check_launch(call);
    connect_tiles<512>
        <<<1, 512, 0, stream>>>(problem.total, problem.tiles, P::kTile, problem.descriptors, problem.rounds);
  } else {
    describe_tiles<<<describe_blocks, kDescribeThreads, 0, stream>>>(operands.segments, problem.tiles, P::kTile,
                                                                     problem.descriptors, problem.rounds);
  }
  check_launch(call);
  const auto sort = sort_tiles<Order, Payload>;
  constexpr int kSortShared = sizeof(SortShared<Order, Payload>);
  check(call, cudaFuncSetAttribute(sort, cudaFuncAttributeMaxDynamicSharedMemorySize, kSortShared));
  sort<<<problem.tiles, P::kShape.threads, kSortShared, stream>>>(problem);
  check_launch(call);
  // A segment lies within a row: no more rounds than the tiles that a row can touch need.
  const int64_t row_tiles = minimum(problem.tiles, ceil_div<int64_t>(operands.segments.length, P::kTile) + 1);
  const int most_rounds = group_rounds<int64_t>({0, row_tiles}, 1);
  const int64_t plan_blocks = ceil_div<int64_t>(problem.tiles, kPlanTiles);
  constexpr int kMergeShared = sizeof(MergeShared<Order, Payload>);
  const auto merge = merge_tiles<Order, Payload>;
  check(call, cudaFuncSetAttribute(merge, cudaFuncAttributeMaxDynamicSharedMemorySize, kMergeShared));
  const int merge_blocks = resident_blocks(call, merge, P::kShape.threads, kMergeShared, problem.tiles);
  for (int round = 0; round < most_rounds; ++round) {
    plan_tiles<Order, Payload><<<plan_blocks, kPlanThreads, 0, stream>>>(problem, round);
    check_launch(call);
    merge<<<merge_blocks, P::kShape.threads, kMergeShared, stream>>>(problem, round);
    check_launch(call);
  }
}

}  // namespace

void segmented_sort(const Call& call, cudaStream_t stream) {
  const SegmentedSortOperands operands(call);
  if (operands.segments.total() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width,
                     [&](auto payload) { run<decltype(order), decltype(payload)>(call, operands, order, stream); });
  });
}

}  // namespace mgpu::cuda
