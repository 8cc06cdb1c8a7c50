// Set operations on CUDA, in one pass over the inputs: balanced path cuts both into tiles, a block merges a tile, keeps
// what its operation keeps, a look-back over the tiles says where that goes, and it is stored in order.
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "cuda/cta/count_look_back.cuh"
#include "cuda/cta/merge_heads.cuh"
#include "cuda/cta/tail.cuh"
#include "cuda/cta/two_runs.cuh"
#include "cuda/launch.cuh"
#include "cuda/shapes.h"
#include "operands/sets.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

template <typename Order, typename Payload>
struct Problem {
  using Word = typename Order::Word;
  using Value = Payload;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  static constexpr SetTileShape kShape = set_tile_shape(sizeof(Word));
  static constexpr int kThreads = kShape.threads;
  static constexpr int kItems = kShape.items;
  static constexpr int kBuffers = kHasPayload ? 1 : 2;
  // Blocks that a multiprocessor should hold: caps registers where that costs no spill.
  static constexpr int kBlocksPerProcessor = sizeof(Word) == 8 || sizeof(Payload) == 8 ? 3 : 4;

  MergeTiles<Order> tiles;
  SetRule rule;
  bool gives_indices;
  int64_t row_tiles;
  int64_t size;
  const Split<int64_t>* splits;
  uint64_t* ticket;
  uint64_t* counts_before;
  SetsOperands::Rows a_values;
  SetsOperands::Rows b_values;
  Word* keys;
  Payload* payload;
  IndexResult counts;
};

// ---- The tiles
// --------------------------------------------------------------------------------------------------------

// A thread a split: the splits of 2 x 2^26 keys take 0.036 ms by one lane each, 0.045 by 4, 0.147 by 32, which read
// more sectors.
template <typename Order>
__global__ void split_rows(const __grid_constant__ MergeTiles<Order> tiles, bool duplicates, int64_t row_tiles,
                           int tile_width, Split<int64_t>* splits) {
  using Word = typename Order::Word;
  const int64_t found = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = found / (row_tiles + 1);
  if (row >= tiles.pair.rows) return;
  const int64_t a_live = tiles.pair.a.live(row);
  const int64_t b_live = tiles.pair.b.live(row);
  const int64_t diagonal = minimum((found - row * (row_tiles + 1)) * tile_width, a_live + b_live);
  splits[found] = balanced_path(
      a_live, b_live, diagonal, [&](int64_t i) { return tiles.a_code(row, i); },
      [&](int64_t i) { return tiles.b_code(row, i); }, [&](Word x, Word y) { return tiles.order.less(x, y); },
      duplicates, [](auto begin, auto end, auto before) { return partition_point(begin, end, before); });
}

// ---- The walk over a tile
// ---------------------------------------------------------------------------------------------

// What a block does.
struct Plan {
  unsigned tile;
  bool exists;  // or there are no tiles left
  unsigned row;
  bool is_first;  // of its row
  bool is_last;
  Split<int64_t> begin;  // the row's items before
  TwoRuns runs;
};

template <typename P>
__device__ Plan plan_tile(const P& problem, unsigned tile) {
  Plan plan{};
  plan.tile = tile;
  plan.exists = tile < problem.tiles.pair.rows * problem.row_tiles;
  if (!plan.exists) return plan;
  const unsigned row_tiles = static_cast<unsigned>(problem.row_tiles);
  plan.row = plan.tile / row_tiles;
  plan.is_first = plan.tile == plan.row * row_tiles;
  plan.is_last = plan.tile + 1 == (plan.row + 1) * row_tiles;
  const Split<int64_t>* const splits = problem.splits + plan.tile + plan.row;
  plan.begin = splits[0];
  const Split<int64_t> end = part_end<int64_t>(plan.begin, splits[1], P::kShape.tile() + 1);
  plan.runs =
      two_runs<typename P::Word>(problem.tiles.pair, plan.row, plan.begin.a, static_cast<int>(end.a - plan.begin.a),
                                 plan.begin.b, static_cast<int>(end.b - plan.begin.b));
  return plan;
}

template <typename P>
struct Buffer {
  static constexpr int kRoom = P::kThreads * P::kItems;
  // A tile's items, and what a thread may read past their end; then the keys that the result keeps.
  alignas(kChunkBytes) typename P::Word keys[two_runs_room<typename P::Word>(kRoom) + P::kItems];
  uint16_t sources[P::kHasPayload ? kRoom : 1];  // where in keys the result's items lie
};

template <typename P>
struct Shared {
  using Scan = cub::BlockScan<int, P::kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  Buffer<P> buffers[P::kBuffers];
  typename Scan::TempStorage scan;
  Plan plans[4];
  int64_t slot;  // of the first item that a tile keeps
};

// The split of the balanced path near that of merge path, where few copies of a key lie between them: false where there
// may be many. `open` says whether the split parts a pair.
template <typename Word, typename Less>
__device__ bool balance_near(const Word* a, const Word* b, int b_count, Split<int>& split, bool& open, Less less) {
  constexpr int kFew = 4;
  const auto [i, j] = split;
  open = false;
  if (i == 0 || j == b_count) return true;
  const Word key = b[j];
  if (less(a[i - 1], key)) return true;
  const auto is_copy_in_a = [&](int before) { return before <= i && !less(a[i - before], key); };
  int paired = 0;  // copies in B before the split; there are as many in A at least
#pragma unroll 1
  while (paired < j && !less(b[j - 1 - paired], key)) {
    if (++paired > kFew) return false;
    if (!is_copy_in_a(paired + 1)) return true;
  }
  // Of A's further copies, half give way to copies in B.
  int moved = 0;
  bool in_b = true;
#pragma unroll 1
  while (in_b && is_copy_in_a(paired + 2 * moved + 2)) {
    if (++moved > kFew) return false;
    in_b = j + moved < b_count && !less(key, b[j + moved]);
  }
  open = in_b && is_copy_in_a(paired + 2 * moved + 1);
  split = {i - moved, j + moved};
  return true;
}

// The split of the balanced path after `diagonal` items of the tile.
template <int kRoom, typename Word, typename Less>
__device__ Split<int> start_in_tile(const Word* keys, const MergeCursor& runs, int diagonal, bool& open, Less less) {
  const Word* const a = keys + runs.a;
  const Word* const b = keys + runs.b;
  const int b_count = runs.b_end - runs.b;
  const int merged = shared_cursor<kRoom>(keys, runs, diagonal, less).a - runs.a;
  Split<int> split{merged, diagonal - merged};
  if (balance_near(a, b, b_count, split, open, less)) return split;
  split = balanced_from_merged(
      b_count, merged, diagonal, [=](int i) { return a[i]; }, [=](int i) { return b[i]; }, less, true,
      [](int begin, int end, auto before) { return partition_point(begin, end, before); });
  open = split.a + split.b > diagonal;
  split.b = diagonal - split.a;
  return split;
}

// What the steps of a thread took, a bit a step.
struct Steps {
  unsigned b = 0;       // B's item
  unsigned opened = 0;  // A's item of a pair, whose other item comes next
};

// Takes kItems items in the order of the balanced path: A's copy of a pair, then B's. `open` says whether the last item
// before opened a pair. note(i, in_b, heads) sees each item before it is taken.
template <int kItems, typename Word, typename Less, typename Note>
__device__ Steps walk(MergeHeads<Word> heads, bool open, Less less, Note note) {
  Steps steps;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool has_b = heads.b < heads.b_end;
    const bool in_b = has_b & (open | (heads.a >= heads.a_end) | less(heads.b_key, heads.a_key));
    open = has_b & !in_b & !less(heads.a_key, heads.b_key);
    note(i, in_b, heads);
    steps.b |= in_b ? 1u << i : 0;
    steps.opened |= open ? 1u << i : 0;
    // Left alone, the compiler keeps the comparisons of all steps in registers and sets the bits at the end.
    asm volatile("" : "+r"(steps.b), "+r"(steps.opened));
    heads.take(in_b);
  }
  return steps;
}

// Finds what the result keeps of a tile, tells the later tiles how much, and moves it together.
template <typename P, typename Order>
__device__ int keep_in_tile(const P& problem, const Plan& plan, const Order& order, Buffer<P>& buffer,
                            typename Shared<P>::Scan::TempStorage& scan) {
  using Word = typename P::Word;
  using Taken = std::conditional_t<P::kHasPayload, uint32_t, Word>;
  constexpr int kItems = P::kItems;
  const int a_count = plan.runs.a_count, a_place = plan.runs.a_place;
  const int b_count = plan.runs.b_count, b_place = plan.runs.b_place;
  const auto less = [&](Word x, Word y) { return order.less(x, y); };
  const int total = a_count + b_count;
  const int diagonal = minimum(static_cast<int>(threadIdx.x) * kItems, total);
  bool open;
  const MergeCursor runs{a_place, a_place + a_count, b_place, b_place + b_count};
  const Split<int> split = start_in_tile<Buffer<P>::kRoom>(buffer.keys, runs, diagonal, open, less);
  const MergeCursor cursor{a_place + split.a, runs.a_end, b_place + split.b, runs.b_end};
  const MergeHeads<Word> heads(buffer.keys, cursor);
  Taken taken[kItems];
  const auto note = [&](int i, bool in_b, const MergeHeads<Word>& heads) {
    if constexpr (P::kHasPayload) {
      taken[i] = in_b ? heads.b : heads.a;
    } else {
      taken[i] = in_b ? heads.b_key : heads.a_key;
    }
  };
  const Steps steps = walk<kItems>(heads, open, less, note);
  const unsigned live = (1u << clamp(total - diagonal, 0, kItems)) - 1;
  const unsigned closed = steps.opened << 1 | unsigned{open};
  const unsigned keep =
      live & ((problem.rule.pairs ? steps.opened : 0) | (problem.rule.a_alone ? ~steps.b & ~steps.opened : 0) |
              (problem.rule.b_alone ? steps.b & ~closed : 0));
  int slot, kept;
  typename Shared<P>::Scan(scan).ExclusiveSum(__popc(keep), slot, kept);
  if (threadIdx.x == 0) publish_count(problem.counts_before, plan.tile, plan.is_first, kept);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!((keep >> i) & 1)) continue;
    if constexpr (P::kHasPayload) {
      buffer.sources[slot] = static_cast<uint16_t>(position_of(taken[i], buffer.keys));
    } else {
      buffer.keys[slot] = taken[i];
    }
    ++slot;
  }
  return kept;
}

// The values that belong to what a tile keeps, or the indices.
template <typename P, typename Payload>
__device__ void load_payload(const P& problem, const Plan& plan, const Buffer<P>& buffer, int kept,
                             Payload (&moved)[P::kItems]) {
  // Added to a place in shared memory: its item.
  const int64_t a_item = plan.begin.a - plan.runs.a_place;
  const int64_t b_item = plan.begin.b - plan.runs.b_place;
  const auto values = [&](const SetsOperands::Rows& rows, int64_t item) {
    return static_cast<const Payload*>(rows.data) + plan.row * rows.stride + item;
  };
  const Payload* const a_values = values(problem.a_values, a_item);
  const Payload* const b_values = values(problem.b_values, b_item);
#pragma unroll
  for (int i = 0; i < P::kItems; ++i) {
    const int position = i * P::kThreads + threadIdx.x;
    if (position >= kept) continue;
    const int source = buffer.sources[position];
    const bool in_a = source < plan.runs.b_chunk;
    if (problem.gives_indices) {
      moved[i] = static_cast<Payload>(source + (in_a ? a_item : problem.tiles.pair.a.length + b_item));
    } else {
      moved[i] = (in_a ? a_values : b_values)[source];
    }
  }
}

// Stores what a tile keeps where it belongs.
template <typename P, typename Order>
__device__ void store_tile(const P& problem, const Plan& plan, const Order& order, const Buffer<P>& buffer, int kept,
                           int64_t& shared_slot) {
  [[maybe_unused]] typename P::Value moved[P::kItems];
  if constexpr (P::kHasPayload) load_payload(problem, plan, buffer, kept, moved);  // on their way during the look-back
  if (threadIdx.x < kWarp) {
    const int64_t before = count_before(problem.counts_before, plan.tile, plan.is_first, kept);
    if (threadIdx.x == 0) {
      shared_slot = before;
      if (plan.is_last) problem.counts.set(plan.row, before + kept);
    }
  }
  __syncthreads();
  const int64_t first = plan.row * problem.size + shared_slot;
  const int stored = static_cast<int>(clamp<int64_t>(problem.size - shared_slot, 0, kept));
#pragma unroll 4
  for (int position = threadIdx.x; position < stored; position += P::kThreads) {
    problem.keys[first + position] = order.decode(buffer.keys[P::kHasPayload ? buffer.sources[position] : position]);
  }
  if constexpr (P::kHasPayload) {
#pragma unroll
    for (int i = 0; i < P::kItems; ++i) {
      const int position = i * P::kThreads + threadIdx.x;
      if (position < stored) problem.payload[first + position] = moved[i];
    }
  }
}

// Without a payload a block stores a tile once it has told the count of its next one: by then the tiles before have
// told theirs, and the look-back need not wait. With one, the memory for two tiles would leave room for fewer blocks,
// which costs more than it gains, and a block has one tile.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kThreads, Problem<Order, Payload>::kBlocksPerProcessor)
    keep_items(const __grid_constant__ Problem<Order, Payload> problem) {
  using P = Problem<Order, Payload>;
  constexpr int kPlanner = P::kThreads - 1;  // of the last warp, as the first one looks back
  extern __shared__ uint4 dynamic_shared[];
  Shared<P>& shared = *reinterpret_cast<Shared<P>*>(dynamic_shared);
  const Order order = problem.tiles.order;
  const auto draw = [&] { return static_cast<unsigned>(draw_ticket(problem.ticket)); };
  const auto copy = [&](const Plan& plan, Buffer<P>& buffer) {
    start_copy<P::kThreads, Buffer<P>::kRoom>(problem.tiles.pair, plan.runs, buffer.keys);
  };

  if (threadIdx.x == kPlanner) shared.plans[0] = plan_tile(problem, draw());
  __syncthreads();
  copy(shared.plans[0], shared.buffers[0]);
  int kept_before = 0;
  for (unsigned turn = 0;; ++turn) {
    const Plan& plan = shared.plans[turn % 4];
    Plan& next = shared.plans[(turn + 1) % 4];
    Buffer<P>& buffer = shared.buffers[turn % P::kBuffers];
    Buffer<P>& other = shared.buffers[(turn + 1) % P::kBuffers];
    const bool exists = plan.exists;
    int kept = 0;
    if (exists) {
      unsigned ticket = 0;
      if (P::kBuffers > 1 && threadIdx.x == kPlanner) ticket = draw();
      finish_copy<P::kThreads>(plan.runs, order, buffer.keys);
      kept = keep_in_tile(problem, plan, order, buffer, shared.scan);
      if (P::kBuffers > 1 && threadIdx.x == kPlanner) next = plan_tile(problem, ticket);
    }
    if constexpr (P::kBuffers == 1) {
      __syncthreads();
      store_tile(problem, plan, order, buffer, kept, shared.slot);
      break;
    }
    if (turn > 0) store_tile(problem, shared.plans[(turn - 1) % 4], order, other, kept_before, shared.slot);
    if (!exists) break;
    __syncthreads();
    copy(next, other);
    kept_before = kept;
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
  split_rows<<<ceil_div<int64_t>(splits, kSplitThreads), kSplitThreads, 0, stream>>>(
      tiles, operands.duplicates, row_tiles, P::kShape.tile(), scratch.splits);
  check_launch(call);

  const auto kernel = keep_items<Order, Payload>;
  constexpr size_t kSharedBytes = sizeof(Shared<P>);
  allow_shared(call, kernel, kSharedBytes);
  const int64_t all_tiles = pair.rows * row_tiles;
  const int64_t blocks =
      P::kBuffers == 1 ? all_tiles : resident_blocks(call, kernel, P::kThreads, kSharedBytes, all_tiles);
  kernel<<<blocks, P::kThreads, kSharedBytes, stream>>>(
      P{tiles, operands.rule, operands.gives_indices, row_tiles, operands.size, scratch.splits, scratch.look_back,
        scratch.look_back + 1, operands.a_values, operands.b_values, static_cast<typename Order::Word*>(operands.keys),
        static_cast<Payload*>(operands.payload), operands.counts});
  check_launch(call);

  fill<typename Order::Word>(call, operands, operands.keys, operands.fill, stream);
  if constexpr (P::kHasPayload) fill<Payload>(call, operands, operands.payload, operands.values_fill, stream);
}

}  // namespace

void list_sets_shapes(const Call& call, KernelShapeList& list) {
  for_each_kind(call, "sets", {0, 4, 8}, [&](auto order, auto payload, const std::string& name) {
    constexpr int64_t kBytes = sizeof(Shared<Problem<decltype(order), decltype(payload)>>);
    list.push_back({name, {{kBytes, kBytes}}});
  });
}

void sets(const Call& call, cudaStream_t stream) {
  const SetsOperands operands(call);
  if (operands.pair.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    dispatch_payload(call, operands.payload_width,
                     [&](auto payload) { run<decltype(payload)>(call, operands, order, stream); });
  });
}

}  // namespace mgpu::cuda
