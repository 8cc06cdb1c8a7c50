// join on CUDA, in one pass over the keys: merge path cuts both inputs into tiles, a block merges a tile and so counts
// the partners of its items of A, a look-back over the tiles says where their rows go, and the rows are dealt out
// evenly to the block's warps. Tiles that make very many rows are left to a second kernel, where many blocks share one.
#include <cub/block/block_scan.cuh>

#include "cuda/cta/count_look_back.cuh"
#include "cuda/cta/merge_heads.cuh"
#include "cuda/cta/tail.cuh"
#include "cuda/cta/two_runs.cuh"
#include "cuda/launch.cuh"
#include "operands/join.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
// One heavy tile in the state that counts tiles and units at once, so that both come from one atomic addition and the
// tiles lie in the order of their units.
constexpr uint64_t kHeavyTile = uint64_t{1} << 40;
// Partners of one item are counted up to about here: a tile where this is too few is heavy, and no sum overflows.
constexpr int kMostEntering = 1 << 17;
static_assert(kMostEntering > kJoinHeavy);

template <typename Order>
struct Problem {
  using Word = typename Order::Word;
  static constexpr JoinTileShape kShape = join_tile_shape(sizeof(Word));
  static constexpr int kThreads = kShape.threads;
  static constexpr int kItems = kShape.items;
  static constexpr int kTile = kShape.tile();
  static constexpr int kBlocksPerProcessor = 3;

  MergeTiles<Order> tiles;
  bool keep_a;
  bool keep_b;
  int64_t row_tiles;
  int64_t size;
  IndexResult a_indices;
  IndexResult b_indices;
  JoinOperands::Scratch scratch;
};

// ---- The tiles
// --------------------------------------------------------------------------------------------------------

// A thread an edge.
template <typename Order>
__global__ void find_edges(const __grid_constant__ Problem<Order> problem) {
  using P = Problem<Order>;
  const MergeTiles<Order>& tiles = problem.tiles;
  const int64_t edge = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t row = edge / (problem.row_tiles + 1);
  if (row >= tiles.pair.rows) return;
  const auto find = [](auto begin, auto end, auto before) { return partition_point(begin, end, before); };
  const int64_t a_live = tiles.pair.a.live(row);
  const int64_t slot = minimum((edge - row * (problem.row_tiles + 1)) * P::kTile, a_live + tiles.pair.b.live(row));
  const MergeTiles<Order> b_first{{tiles.pair.rows, tiles.pair.b, tiles.pair.a}, tiles.order};
  const int64_t b = b_first.split(row, slot, find);
  int64_t entering = 0;
  if (slot - b < a_live) {
    const auto key = tiles.a_code(row, slot - b);
    entering = b - partition_point_near_end(
                       int64_t{0}, b, [&](int64_t j) { return tiles.order.less(tiles.b_code(row, j), key); }, find);
  }
  problem.scratch.edges[edge] = {b, entering};
}

// What a block does.
struct Plan {
  unsigned tile;
  int64_t row;
  bool is_first;  // of its row
  bool is_last;
  bool a_follows;  // whether A goes on behind the tile
  int64_t a;       // the row's items before
  int64_t b;
  int64_t entering;  // of those of B, the ones with the key of the next item of A
  int a_count;       // of the tile; its runs hold one more item of A, if there is one
  TwoRuns runs;
};

template <typename Order>
__device__ Plan plan_tile(const Problem<Order>& problem, unsigned tile) {
  using P = Problem<Order>;
  const SortedPair& pair = problem.tiles.pair;
  const unsigned row_tiles = static_cast<unsigned>(problem.row_tiles);
  const unsigned tile_row = tile / row_tiles;
  const unsigned tile_in_row = tile - tile_row * row_tiles;
  Plan plan;
  plan.tile = tile;
  plan.row = tile_row;
  plan.is_first = tile_in_row == 0;
  plan.is_last = tile_in_row == row_tiles - 1;
  const JoinEdge* const edges = problem.scratch.edges + tile + tile_row;
  const int64_t a_live = pair.a.live(plan.row);
  const int64_t b_live = pair.b.live(plan.row);
  const int64_t begin = minimum(int64_t{tile_in_row} * P::kTile, a_live + b_live);
  const int64_t end = minimum(begin + P::kTile, a_live + b_live);
  plan.b = edges[0].b;
  plan.a = begin - plan.b;
  plan.entering = edges[0].entering;
  // Where keys are not sorted, edges contradict each other.
  const int64_t b_end = clamp(edges[1].b, maximum(plan.b, end - a_live), minimum(plan.b + (end - begin), b_live));
  plan.a_count = static_cast<int>(end - b_end - plan.a);
  plan.a_follows = end - b_end < a_live;
  plan.runs = two_runs<typename P::Word>(pair, plan.row, plan.a, plan.a_count + plan.a_follows, plan.b,
                                         static_cast<int>(b_end - plan.b));
  return plan;
}

// ---- What a tile makes
// ------------------------------------------------------------------------------------------------

// An item of A that makes rows of the output.
struct Entry {
  int start;        // its first row, counted from the first row to be written
  unsigned origin;  // where it lies in the tile and, times 2^16, its first partner: 2 and its place in the tile
};
constexpr unsigned kNoPartner = 0;
constexpr unsigned kEntering = 1;  // the first of B's items that enter the tile

// The items of A and of B in a tile are fewer than 2^16; the rows that count fewer than 2^31.
struct Sums {
  uint64_t packed = 0;

  __device__ int rows() const { return static_cast<int>(packed >> 32); }              // of the output
  __device__ int entries() const { return static_cast<int>(packed >> 16 & 0xffff); }  // items of A that make any
  __device__ int alone() const { return static_cast<int>(packed & 0xffff); }          // items of B without a partner
};

template <typename Order>
struct Shared {
  using P = Problem<Order>;
  using Word = typename P::Word;
  using Scan = cub::BlockScan<uint64_t, P::kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  union {
    alignas(kChunkBytes) Word keys[two_runs_room<Word>(P::kTile + 1) + P::kItems];
    Entry entries[P::kTile];
  };
  typename Scan::TempStorage scan;
  Plan plan;
  int64_t slot;        // of the tile's first row
  int64_t alone_slot;  // of its first item of B without a partner
  int64_t skipped;     // rows of the first entry to be written that come before the first row
  int first_entry;
};

// A block's work on one tile.
template <typename Order>
class Tile {
  using P = Problem<Order>;
  using Word = typename Order::Word;
  static constexpr int kItems = P::kItems;

 public:
  __device__ Tile(const P& problem, Shared<Order>& shared) : problem_(problem), shared_(shared), plan(shared.plan) {}

  // Counts the partners of the thread's items, and gives the sums over the tile. Where the rows are more than
  // kJoinHeavy they may be more than it says. kFindsAlone: items of B without a partner are found too.
  template <bool kFindsAlone>
  __device__ Sums find_partners() {
    const Order order = problem_.tiles.order;
    const auto less = [&](Word x, Word y) { return order.less(x, y); };
    const int a_count = plan.a_count, b_count = plan.runs.b_count;
    start_copy<P::kThreads, P::kTile + 1>(problem_.tiles.pair, plan.runs, shared_.keys);
    finish_copy<P::kThreads>(plan.runs, order, shared_.keys);
    const Word* const a = shared_.keys + plan.runs.a_place;
    const Word* const b = shared_.keys + plan.runs.b_place;
    const int total = a_count + b_count;
    const int diagonal = minimum(static_cast<int>(threadIdx.x) * kItems, total);
    const MergeCursor merged = shared_cursor<P::kTile>(
        shared_.keys, {plan.runs.b_place, plan.runs.b_place + b_count, plan.runs.a_place, plan.runs.a_place + a_count},
        diagonal, less);
    first_b_ = merged.a - plan.runs.b_place;
    first_a_ = diagonal - first_b_;

    // The item before in the merge, or an equal one, and the copies of it in B up to here.
    const int entering = static_cast<int>(minimum<int64_t>(plan.entering, kMostEntering));
    Word last = a[0];
    int copies = 0;
    if (first_b_ > 0) {
      last = b[first_b_ - 1];
      const int first = partition_point_near_end(
          0, first_b_ - 1, [&](int j) { return less(b[j], last); },
          [](int begin, int end, auto before) { return partition_point(begin, end, before); });
      const bool enters = first == 0 && a_count > 0 && !less(last, a[0]) && !less(a[0], last);
      copies = first_b_ - first + (enters ? entering : 0);
    } else {
      copies = entering;
    }

    MergeHeads<Word> heads(shared_.keys, {plan.runs.b_place + first_b_, plan.runs.b_place + b_count,
                                          plan.runs.a_place + first_a_, plan.runs.a_place + a_count});
    const uint32_t a_known = shared_address(a + a_count + plan.a_follows);
    int rows = 0;
    unsigned has_partners = 0, is_paired = 0;
#pragma unroll
    for (int step = 0; step < kItems; ++step) {
      const bool in_a = heads.next_is_b(less);
      if (kFindsAlone) is_paired |= (heads.b < a_known) & !less(heads.a_key, heads.b_key) ? 1u << step : 0;
      const Word key = in_a ? heads.b_key : heads.a_key;
      copies = less(last, key) ? 0 : copies;
      last = key;
      if (in_a) {
        rows += copies;
      } else {
        ++copies;
      }
      partners_[step] = copies;
      is_a_ |= in_a ? 1u << step : 0;
      has_partners |= in_a & (copies > 0) ? 1u << step : 0;
      // Left alone, the compiler keeps the comparisons of all steps in registers and sets the bits at the end.
      asm volatile("" : "+r"(is_a_), "+r"(has_partners), "+r"(is_paired));
      heads.take(in_a);
    }
    // Past the end items seem to come from B.
    makes_rows_ = problem_.keep_a ? is_a_ : has_partners;
    is_alone_ = kFindsAlone ? ((1u << minimum(kItems, total - diagonal)) - 1) & ~is_a_ & ~is_paired : 0;
    rows += __popc(makes_rows_ & ~has_partners);
    const Sums sums{static_cast<uint64_t>(rows) << 32 | __popc(makes_rows_) << 16 | __popc(is_alone_)};
    Sums total_sums;
    typename Shared<Order>::Scan(shared_.scan).ExclusiveSum(sums.packed, before_.packed, total_sums.packed);
    rows_before_ = before_.rows();
    __syncthreads();
    return total_sums;
  }

  // The rows of a tile that makes very many, and those before the thread's.
  __device__ int64_t count_many_rows() {
    int64_t rows = 0;
#pragma unroll
    for (int step = 0; step < kItems; ++step) rows += makes_rows_ >> step & 1 ? made_by(step) : 0;
    uint64_t before, total;
    typename Shared<Order>::Scan(shared_.scan).ExclusiveSum(static_cast<uint64_t>(rows), before, total);
    __syncthreads();
    rows_before_ = static_cast<int64_t>(minimum<uint64_t>(before, kLargestCount));
    return static_cast<int64_t>(minimum<uint64_t>(total, kLargestCount));
  }

  // Notes the entries that make rows [begin, end) of the tile.
  template <bool kMany>
  __device__ void place(int64_t begin, int64_t end) {
    int64_t start = rows_before_;
    int entry = before_.entries();
    int a = first_a_;
    int b = first_b_;
#pragma unroll
    for (int step = 0; step < kItems; ++step) {
      const bool in_a = is_a_ >> step & 1;
      if (makes_rows_ >> step & 1) {
        const int first = b - partners_[step] + 2;
        const unsigned partner = partners_[step] == 0 ? kNoPartner
                                 : first < 2          ? kEntering
                                                      : static_cast<unsigned>(first);
        Entry noted{static_cast<int>(start), static_cast<unsigned>(a) | partner << 16};
        const int64_t made = kMany ? made_by(step) : maximum(partners_[step], 1);
        if (kMany) {
          const bool covers = start <= begin && begin < start + made;
          if (covers) {
            shared_.skipped = begin - start;
            shared_.first_entry = entry;
          }
          noted.start = covers ? 0 : static_cast<int>(clamp<int64_t>(start - begin, -1, end - begin));
        }
        shared_.entries[entry++] = noted;
        start += made;
      }
      a += in_a;
      b += !in_a;
    }
    __syncthreads();
  }

  // Writes `rows` rows that have been placed, of `entries` entries, the first to `slot`. Index holds every index.
  template <bool kMany, typename Index>
  __device__ void write(int rows, int entries, int64_t slot) const {
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
    const int share = ceil_div(ceil_div(rows, P::kThreads / kWarp), kWarp) * kWarp;
    const int share_end = minimum(rows, (warp + 1) * share);
    const int64_t out = plan.row * problem_.size + slot;
    Index* const a_out = static_cast<Index*>(problem_.a_indices.data) + out;
    Index* const b_out = static_cast<Index*>(problem_.b_indices.data) + out;
    const Index a_first = static_cast<Index>(plan.a);
    const Index b_first = static_cast<Index>(plan.b - 2);
    const Index entering = static_cast<Index>(plan.b - plan.entering);
    int entry = warp_partition_point(0, entries, [&](int e) { return shared_.entries[e].start < warp * share; }) - 1;
    for (int base = warp * share; base < share_end; base += kWarp) {
      // Every entry makes a row, so the 32 rows from `base` on are made by this entry and the next 32 at most.
      const int next = entry + 1 + lane;
      const int distance = next < entries ? shared_.entries[next].start - base : kWarp;
      const unsigned marks = or_lanes(distance < kWarp ? 1u << distance : 0u);
      const int mine = entry + __popc(marks & ((2u << lane) - 1));
      entry += __popc(marks);
      const int position = base + lane;
      if (position >= share_end) break;
      const Entry made = shared_.entries[mine];
      const unsigned partner = made.origin >> 16;
      Index b = (partner == kEntering ? entering : b_first + static_cast<Index>(partner)) + (position - made.start);
      if (kMany && mine == shared_.first_entry) b += static_cast<Index>(shared_.skipped);
      a_out[position] = a_first + static_cast<Index>(made.origin & 0xffff);
      b_out[position] = partner == kNoPartner ? Index{-1} : b;
    }
  }

  // Notes the thread's items of B without a partner, of which the tile's first goes to `slot` of the row's list.
  __device__ void list_alone(int64_t slot) const {
    const int64_t length = problem_.tiles.pair.b.length;
    int64_t listed = slot + before_.alone();
    int64_t b = plan.b + first_b_;
    for (int step = 0; step < kItems; ++step) {
      if (is_alone_ >> step & 1) {
        if (listed < length) problem_.scratch.alone_items.set(plan.row * length + listed, b);
        ++listed;
      }
      b += !(is_a_ >> step & 1);
    }
  }

 private:
  __device__ int64_t made_by(int step) const {
    const int64_t uncounted = maximum<int64_t>(plan.entering - kMostEntering, 0);
    return maximum<int64_t>(partners_[step] + (partners_[step] >= kMostEntering ? uncounted : 0), 1);
  }

  __device__ static unsigned or_lanes(unsigned bits) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(kAllLanes, bits);
#else
    for (int distance = 1; distance < kWarp; distance *= 2) bits |= __shfl_xor_sync(kAllLanes, bits, distance);
    return bits;
#endif
  }

  const P& problem_;
  Shared<Order>& shared_;
  int first_a_;  // the thread's first items, in the tile
  int first_b_;
  int partners_[kItems];  // of the item of A that a step took
  unsigned is_a_ = 0;     // a bit a step
  unsigned makes_rows_ = 0;
  unsigned is_alone_ = 0;
  Sums before_;  // what the earlier threads make
  int64_t rows_before_;

 public:
  const Plan& plan;
};

// ---- The passes
// -------------------------------------------------------------------------------------------------------

template <typename Order>
__global__ void __launch_bounds__(Problem<Order>::kThreads, Problem<Order>::kBlocksPerProcessor)
    join_tiles(const __grid_constant__ Problem<Order> problem) {
  __shared__ Shared<Order> shared;
  const JoinOperands::Scratch& scratch = problem.scratch;
  if (threadIdx.x == 0) shared.plan = plan_tile(problem, static_cast<unsigned>(draw_ticket(scratch.zeroed)));
  __syncthreads();
  Tile<Order> tile(problem, shared);
  const Plan& plan = tile.plan;
  const Sums sums = problem.keep_b ? tile.template find_partners<true>() : tile.template find_partners<false>();
  const bool is_light = sums.rows() <= kJoinHeavy;
  const int64_t total = is_light ? sums.rows() : tile.count_many_rows();
  // By the thread that later writes the sum to the same word: it must not overtake the count.
  if (threadIdx.x == 0) publish_count(scratch.row_words, plan.tile, plan.is_first, total);
  if (threadIdx.x == kWarp && problem.keep_b) {
    publish_count(scratch.alone_words, plan.tile, plan.is_first, sums.alone());
  }
  if (is_light) tile.template place<false>(0, total);

  if (threadIdx.x < kWarp) {
    const int64_t slot = count_before(scratch.row_words, plan.tile, plan.is_first, total);
    if (threadIdx.x == 0) {
      shared.slot = slot;
      if (plan.is_last) scratch.paired[plan.row] = add_counts(slot, total);
    }
  } else if (threadIdx.x < 2 * kWarp && problem.keep_b) {
    const int64_t slot = count_before(scratch.alone_words, plan.tile, plan.is_first, sums.alone());
    if (threadIdx.x == kWarp) {
      shared.alone_slot = slot;
      if (plan.is_last) scratch.alone[plan.row] = slot + sums.alone();
    }
  }
  __syncthreads();

  if (sums.alone() > 0) tile.list_alone(shared.alone_slot);
  const int64_t rows = clamp<int64_t>(problem.size - shared.slot, 0, total);
  if (rows == 0) return;
  if (is_light && problem.a_indices.wide) {
    tile.template write<false, int64_t>(static_cast<int>(rows), sums.entries(), shared.slot);
  } else if (is_light) {
    tile.template write<false, int32_t>(static_cast<int>(rows), sums.entries(), shared.slot);
  } else if (threadIdx.x == 0) {
    const uint64_t units = ceil_div(rows, kJoinUnit);
    const uint64_t state = atomicAdd(reinterpret_cast<unsigned long long*>(scratch.heavy_state), kHeavyTile + units);
    scratch.heavy[state / kHeavyTile] = {static_cast<int64_t>(state % kHeavyTile), shared.slot, rows, plan.tile};
  }
}

// The heavy tiles, which are searched once more by each block that writes a unit of one.
template <typename Order>
__global__ void __launch_bounds__(Problem<Order>::kThreads, 2)
    join_heavy_tiles(const __grid_constant__ Problem<Order> problem) {
  __shared__ Shared<Order> shared;
  const uint64_t state = *problem.scratch.heavy_state;
  const int64_t heavy_tiles = static_cast<int64_t>(state / kHeavyTile);
  const int64_t units = static_cast<int64_t>(state % kHeavyTile);
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int64_t next = partition_point(int64_t{0}, heavy_tiles,
                                         [&](int64_t i) { return problem.scratch.heavy[i].first_unit <= unit; });
    const JoinHeavyTile heavy = problem.scratch.heavy[next - 1];
    const int64_t begin = (unit - heavy.first_unit) * kJoinUnit;
    const int64_t end = minimum(begin + kJoinUnit, heavy.rows);
    if (threadIdx.x == 0) shared.plan = plan_tile(problem, static_cast<unsigned>(heavy.tile));
    __syncthreads();
    Tile<Order> tile(problem, shared);
    const Sums sums = tile.template find_partners<false>();
    tile.count_many_rows();
    tile.template place<true>(begin, end);
    if (problem.a_indices.wide) {
      tile.template write<true, int64_t>(static_cast<int>(end - begin), sums.entries(), heavy.slot + begin);
    } else {
      tile.template write<true, int32_t>(static_cast<int>(end - begin), sums.entries(), heavy.slot + begin);
    }
    __syncthreads();
  }
}

// The rows of B without a partner, and nothing behind them.
__global__ void finish_rows(const __grid_constant__ JoinOperands operands,
                            const __grid_constant__ JoinOperands::Scratch scratch) {
  const int64_t rows = operands.pair.rows;
  const auto alone = [&](int64_t row) { return operands.keep_b ? scratch.alone[row] : 0; };
  for (int64_t row = blockIdx.x * int64_t{kTailThreads} + threadIdx.x; row < rows;
       row += gridDim.x * int64_t{kTailThreads}) {
    operands.set_count(row, scratch.paired[row] + alone(row));
  }
  const IndexVector alone_items{scratch.alone_items.data, scratch.alone_items.wide};
  for_each_tail_slot(
      rows, operands.size, [&](int64_t row) { return scratch.paired[row]; },
      [&](int64_t row, int64_t slot) {
        const int64_t i = slot - scratch.paired[row];
        const int64_t out = row * operands.size + slot;
        operands.a_indices.set(out, -1);
        operands.b_indices.set(
            out, i < alone(row) && i < operands.pair.b.length ? alone_items[row * operands.pair.b.length + i] : -1);
      });
}

template <typename Order>
void run(const Call& call, const JoinOperands& operands, Order order, cudaStream_t stream) {
  using P = Problem<Order>;
  Workspace workspace(call.results.back().data, call.results.back().bytes());
  const JoinOperands::Scratch scratch = operands.layout(workspace);
  const P problem{{operands.pair, order}, operands.keep_a,    operands.keep_b,    operands.row_tiles(),
                  operands.size,          operands.a_indices, operands.b_indices, scratch};
  check(call, cudaMemsetAsync(scratch.zeroed, 0, scratch.zeroed_words * sizeof(uint64_t), stream));

  constexpr int kEdgeThreads = 128;
  const int64_t edges = operands.pair.rows * (operands.row_tiles() + 1);
  find_edges<<<ceil_div<int64_t>(edges, kEdgeThreads), kEdgeThreads, 0, stream>>>(problem);
  check_launch(call);
  join_tiles<<<operands.tiles(), P::kThreads, 0, stream>>>(problem);
  check_launch(call);
  if (operands.size > 0) {
    const auto kernel = join_heavy_tiles<Order>;
    const int64_t units = operands.pair.rows * (ceil_div(operands.size, kJoinUnit) + 1);
    kernel<<<resident_blocks(call, kernel, P::kThreads, 0, units), P::kThreads, 0, stream>>>(problem);
    check_launch(call);
  }
  const int64_t pieces = tail_pieces(operands.pair.rows, operands.size);
  const int blocks = resident_blocks(call, finish_rows, kTailThreads, 0, pieces);
  finish_rows<<<blocks, kTailThreads, 0, stream>>>(operands, scratch);
  check_launch(call);
}

}  // namespace

void join(const Call& call, cudaStream_t stream) {
  const JoinOperands operands(call);
  if (operands.pair.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) { run(call, operands, order, stream); });
}

}  // namespace mgpu::cuda
