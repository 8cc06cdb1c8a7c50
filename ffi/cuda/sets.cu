// Set operations on CUDA, in one pass over the inputs: balanced path cuts both into tiles, a block walks over a tile
// and keeps what its operation keeps, a look-back over the tiles says where that goes, and it is stored in order.
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "cuda/cta/copy_async.cuh"
#include "cuda/cta/row_prefix.cuh"
#include "cuda/cta/tail.cuh"
#include "cuda/launch.cuh"
#include "operands/sets.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

template <typename Order, typename Payload>
struct Problem {
  using Word = typename Order::Word;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  static constexpr SetTileShape kShape = set_tile_shape(sizeof(Word));
  static constexpr int kThreads = kShape.threads;
  static constexpr int kItems = kShape.items;
  // Blocks that a multiprocessor should hold: caps registers where that costs no spill.
  static constexpr int kBlocksPerProcessor = sizeof(Word) == 8 ? 3 : 4;

  MergeTiles<Order> tiles;
  SetRule rule;
  bool duplicates;
  bool gives_indices;
  int64_t row_tiles;
  int64_t size;
  const Split<int64_t>* splits;
  uint64_t* look_back;
  SetsOperands::Rows a_values;
  SetsOperands::Rows b_values;
  Word* keys;
  Payload* payload;
  IndexResult counts;
};

// ---- The tiles
// --------------------------------------------------------------------------------------------------------

// A warp a split.
template <typename Order>
__global__ void split_rows(const __grid_constant__ MergeTiles<Order> tiles, bool duplicates, int64_t row_tiles,
                           int tile_width, Split<int64_t>* splits) {
  using Word = typename Order::Word;
  const int64_t warp = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  const int64_t row = warp / (row_tiles + 1);
  if (row >= tiles.pair.rows) return;
  const int64_t a_live = tiles.pair.a.live(row);
  const int64_t b_live = tiles.pair.b.live(row);
  const int64_t diagonal = minimum((warp - row * (row_tiles + 1)) * tile_width, a_live + b_live);
  const Split<int64_t> split = balanced_path(
      a_live, b_live, diagonal, [&](int64_t i) { return tiles.a_code(row, i); },
      [&](int64_t i) { return tiles.b_code(row, i); }, [&](Word x, Word y) { return tiles.order.less(x, y); },
      duplicates, [](auto begin, auto end, auto before) { return warp_partition_point(begin, end, before); });
  if (threadIdx.x % kWarp == 0) splits[warp] = split;
}

__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// ---- The walk over a tile
// ---------------------------------------------------------------------------------------------

template <typename P>
struct Shared {
  using Scan = cub::BlockScan<int, P::kThreads>;
  typename P::Word keys[P::kThreads * P::kItems + 1];  // of the tile's items of A, then of B
  uint16_t sources[P::kThreads * P::kItems];           // which of them the result keeps, in order
  Split<uint16_t> splits[P::kThreads + 1];             // between threads
  typename Scan::TempStorage scan;
  int64_t ticket;
  int64_t slot;  // of the first kept item
};

// What the steps of a thread do, a bit a step: few registers, from which the sources are counted out again.
struct Steps {
  unsigned take_a = 0;
  unsigned take_b = 0;
  unsigned keep = 0;
};

// Walks over A's keys [begin.a, end.a) and B's [begin.b, end.b); a step takes one item or a pair, so there are at most
// as many as a thread has diagonals.
template <int kItems, typename Order>
__device__ Steps walk(const typename Order::Word* keys, Split<int> begin, Split<int> end, SetRule rule,
                      const Order& order) {
  using Word = typename Order::Word;
  Steps steps;
  int a = begin.a, b = begin.b;
  Word a_code = order.encode(keys[a]);
  Word b_code = order.encode(keys[b]);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool has_a = a < end.a;
    const bool has_b = b < end.b;
    const bool a_first = has_a & (!has_b | order.less(a_code, b_code));
    const bool b_first = has_b & (!has_a | order.less(b_code, a_code));
    const SetStep step = set_step(a_first, b_first, rule);
    const unsigned take_a = step.take_a & int{has_a};
    const unsigned take_b = step.take_b & int{has_b};
    steps.keep |= (step.keep & (take_a | take_b)) << i;
    steps.take_a |= take_a << i;
    steps.take_b |= take_b << i;
    // Left alone, the compiler keeps the comparisons of all steps in registers and sets the bits at the end.
    asm volatile("" : "+r"(steps.keep), "+r"(steps.take_a), "+r"(steps.take_b));
    a += take_a;
    b += take_b;
    a_code = order.encode(keys[a]);
    b_code = order.encode(keys[b]);
  }
  return steps;
}

template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kThreads, Problem<Order, Payload>::kBlocksPerProcessor)
    keep_items(const __grid_constant__ Problem<Order, Payload> problem) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kThreads = P::kThreads;
  constexpr int kItems = P::kItems;
  constexpr int kTile = P::kShape.tile();
  __shared__ Shared<P> shared;
  const Order order = problem.tiles.order;
  const SortedPair& pair = problem.tiles.pair;

  const unsigned tile = static_cast<unsigned>(take_ticket(problem.look_back, shared.ticket));
  const unsigned row_tiles = static_cast<unsigned>(problem.row_tiles);
  const unsigned tile_row = tile / row_tiles;
  const int64_t row = tile_row;
  const Split<int64_t>* const splits = problem.splits + tile + tile_row;
  const Split<int64_t> origin = splits[0];
  const Split<int64_t> end = part_end<int64_t>(origin, splits[1], kTile + 1);
  const int a_count = static_cast<int>(end.a - origin.a);
  const int b_count = static_cast<int>(end.b - origin.b);
  const int total = a_count + b_count;

  int kept_count = 0;
  if (total > 0) {
    const Word* const a = static_cast<const Word*>(pair.a.keys) + row * pair.a.stride + origin.a;
    const Word* const b = static_cast<const Word*>(pair.b.keys) + row * pair.b.stride + origin.b - a_count;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (position < total) copy_async(shared.keys + position, (position < a_count ? a : b) + position);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();

    const auto find = [](int begin, int end, auto before) { return partition_point(begin, end, before); };
    const auto less = [&](Word x, Word y) { return order.less(x, y); };
    const Split<int> split = balanced_path(
        a_count, b_count, minimum(static_cast<int>(threadIdx.x) * kItems, total),
        [&](int i) { return order.encode(shared.keys[i]); },
        [&](int i) { return order.encode(shared.keys[a_count + i]); }, less, problem.duplicates, find);
    shared.splits[threadIdx.x] = {static_cast<uint16_t>(split.a), static_cast<uint16_t>(split.b)};
    if (threadIdx.x == 0) shared.splits[kThreads] = {static_cast<uint16_t>(a_count), static_cast<uint16_t>(b_count)};
    __syncthreads();
    const Split<uint16_t> next = shared.splits[threadIdx.x + 1];
    int a_source = split.a, b_source = a_count + split.b;
    const Steps steps =
        walk<kItems>(shared.keys, {a_source, b_source}, {next.a, a_count + next.b}, problem.rule, order);
    int slot;
    typename Shared<P>::Scan(shared.scan).ExclusiveSum(__popc(steps.keep), slot, kept_count);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool from_a = (steps.take_a >> i) & 1;
      if ((steps.keep >> i) & 1) shared.sources[slot++] = static_cast<uint16_t>(from_a ? a_source : b_source);
      a_source += from_a;
      b_source += (steps.take_b >> i) & 1;
    }
    __syncthreads();
  }

  // Added to a source in A or in B: its value, and its index.
  const Payload* const a_values =
      static_cast<const Payload*>(problem.a_values.data) + row * problem.a_values.stride + origin.a;
  const Payload* const b_values =
      static_cast<const Payload*>(problem.b_values.data) + row * problem.b_values.stride + origin.b - a_count;
  const auto value = [&](int source) { return (source < a_count ? a_values : b_values) + source; };
  const auto index = [&](int source) {
    return source + (source < a_count ? origin.a : pair.a.length + origin.b - a_count);
  };
  if constexpr (P::kHasPayload) {
    // On their way while the block waits for its predecessors.
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (!problem.gives_indices && position < kept_count) prefetch(value(shared.sources[position]));
    }
  }

  if (threadIdx.x < kWarp) {
    const unsigned tile_in_row = tile - tile_row * row_tiles;
    const bool is_last = tile_in_row == row_tiles - 1;
    const int64_t slot = row_look_back(problem.look_back + 1, pair.rows * problem.row_tiles, tile, tile_in_row == 0,
                                       kept_count, kept_count > 0 || is_last);
    if (threadIdx.x == 0) {
      shared.slot = slot;
      if (is_last) problem.counts.set(row, slot + kept_count);
    }
  }
  __syncthreads();

  const int64_t first = shared.slot;
  const int stored = static_cast<int>(clamp<int64_t>(problem.size - first, 0, kept_count));
  Word* const keys = problem.keys + row * problem.size + first;
#pragma unroll 4
  for (int position = threadIdx.x; position < stored; position += kThreads) {
    keys[position] = shared.keys[shared.sources[position]];
  }
  if constexpr (P::kHasPayload) {
    Payload* const payload = problem.payload + row * problem.size + first;
    Payload moved[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (position >= stored) continue;
      const int source = shared.sources[position];
      if (problem.gives_indices) {
        moved[i] = static_cast<Payload>(index(source));
      } else {
        moved[i] = *value(source);
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (position < stored) payload[position] = moved[i];
    }
  }
}

// ---- The slots past the count
// -----------------------------------------------------------------------------------------

// A missing fill value stands for -1.
template <typename Word>
__global__ void fill_tails(Word* out, int64_t rows, int64_t size, IndexVector counts, SetsOperands::Rows fill) {
  for_each_tail_slot(
      rows, size, [&](int64_t row) { return counts[row]; },
      [&](int64_t row, int64_t slot) {
        out[row * size + slot] =
            fill.data ? static_cast<const Word*>(fill.data)[row * fill.stride] : static_cast<Word>(-1);
      });
}

template <typename Word>
void fill(const Call& call, const SetsOperands& operands, void* out, SetsOperands::Rows value, cudaStream_t stream) {
  const int64_t pieces = tail_pieces(operands.pair.rows, operands.size);
  if (pieces == 0) return;
  const auto kernel = fill_tails<Word>;
  kernel<<<resident_blocks(call, kernel, kTailThreads, 0, pieces), kTailThreads, 0, stream>>>(
      static_cast<Word*>(out), operands.pair.rows, operands.size, {operands.counts.data, operands.counts.wide}, value);
  check_launch(call);
}

template <typename Payload, typename Order>
void run(const Call& call, const SetsOperands& operands, Order order, cudaStream_t stream) {
  using P = Problem<Order, Payload>;
  Workspace workspace(call.results.back().data, call.results.back().bytes());
  const SetsOperands::Scratch scratch = operands.layout(workspace);
  const SortedPair& pair = operands.pair;
  const MergeTiles<Order> tiles{pair, order};
  const int64_t row_tiles = operands.cuda_row_tiles();
  check(call, cudaMemsetAsync(scratch.look_back, 0, scratch.look_back_words * sizeof(uint64_t), stream));

  constexpr int kSplitThreads = 128;
  const int64_t splits = pair.rows * (row_tiles + 1);
  split_rows<<<ceil_div<int64_t>(splits, kSplitThreads / kWarp), kSplitThreads, 0, stream>>>(
      tiles, operands.duplicates, row_tiles, P::kShape.tile(), scratch.splits);
  check_launch(call);

  keep_items<<<pair.rows * row_tiles, P::kThreads, 0, stream>>>(
      P{tiles, operands.rule, operands.duplicates, operands.gives_indices(), row_tiles, operands.size, scratch.splits,
        scratch.look_back, operands.a_values, operands.b_values, static_cast<typename Order::Word*>(operands.keys),
        static_cast<Payload*>(operands.payload), operands.counts});
  check_launch(call);

  fill<typename Order::Word>(call, operands, operands.keys, operands.fill, stream);
  if constexpr (P::kHasPayload) fill<Payload>(call, operands, operands.payload, operands.values_fill, stream);
}

}  // namespace

void sets(const Call& call, cudaStream_t stream) {
  const SetsOperands operands(call);
  if (operands.pair.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    dispatch_payload(call, operands.payload_width,
                     [&](auto payload) { run<decltype(payload)>(call, operands, order, stream); });
  });
}

}  // namespace mgpu::cuda
