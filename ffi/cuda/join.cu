// join on CUDA, in one pass over the keys: merge path cuts both inputs into tiles, a block finds the partners of its
// items of A, a look-back over the tiles says where their rows go, and the rows are dealt out evenly to the block's
// warps. Tiles that make very many rows are left to a second kernel, where many blocks share one.
#include <cub/block/block_scan.cuh>

#include "cuda/cta/copy_async.cuh"
#include "cuda/cta/row_prefix.cuh"
#include "cuda/cta/tail.cuh"
#include "cuda/launch.cuh"
#include "operands/join.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
// One heavy tile in the state that counts tiles and units at once, so that both come from one atomic addition and the
// tiles lie in the order of their units.
constexpr uint64_t kHeavyTile = uint64_t{1} << 40;

template <typename Order>
struct Problem {
  using Word = typename Order::Word;
  static constexpr JoinTileShape kShape = join_tile_shape(sizeof(Word));
  static constexpr int kThreads = kShape.threads;
  static constexpr int kItems = kShape.items;
  static constexpr int kTile = kShape.tile();
  static constexpr int kBlocksPerProcessor = 4;

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

// A warp an edge.
template <typename Order>
__global__ void find_edges(const __grid_constant__ Problem<Order> problem) {
  using P = Problem<Order>;
  const MergeTiles<Order>& tiles = problem.tiles;
  const int64_t warp = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  const int64_t row = warp / (problem.row_tiles + 1);
  if (row >= tiles.pair.rows) return;
  const auto find = [](auto begin, auto end, auto before) { return warp_partition_point(begin, end, before); };
  const int64_t b_live = tiles.pair.b.live(row);
  const int64_t slot = minimum((warp - row * (problem.row_tiles + 1)) * P::kTile, tiles.pair.a.live(row) + b_live);
  const int64_t a = tiles.split(row, slot, find);
  int64_t run_end = slot - a;
  if (a > 0 && run_end < b_live) {
    const auto key = tiles.a_code(row, a - 1);
    const auto in_run = [&](int64_t j) { return !tiles.order.less(key, tiles.b_code(row, j)); };
    if (in_run(run_end)) run_end = find(run_end, b_live, in_run);
  }
  if (threadIdx.x % kWarp == 0) problem.scratch.edges[warp] = {a, run_end};
}

// ---- What a tile makes
// ------------------------------------------------------------------------------------------------

struct Sums {
  int64_t rows;  // of the output
  int entries;   // items of A that make any
  int alone;     // items of B without a partner
};

struct AddSums {
  __device__ Sums operator()(const Sums& x, const Sums& y) const {
    return {minimum(x.rows + y.rows, kRowStart - 1), x.entries + y.entries, x.alone + y.alone};
  }
};

template <typename Order>
struct Shared {
  using P = Problem<Order>;
  using Scan = cub::BlockScan<Sums, P::kThreads>;
  union {
    typename P::Word keys[P::kTile + 1];  // the tile's items of A, then of B
    int starts[P::kTile];                 // the first row of each entry, counted from the first row to be written
  };
  union {
    unsigned spans[P::kTile];    // by step and thread: the first partner in the tile and, times 2^16, the partners' end
    unsigned origins[P::kTile];  // of each entry: its item of A and, times 2^16, its first partner
  };
  typename Scan::TempStorage scan;
  int64_t ticket;
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
  static constexpr unsigned kNone = 0xffff;    // a first partner: there is none
  static constexpr unsigned kBeyond = 0xffff;  // the end of a run of partners: that of the run that leaves the tile

 public:
  __device__ Tile(const P& problem, Shared<Order>& shared, unsigned tile) : problem_(problem), shared_(shared) {
    const unsigned row_tiles = static_cast<unsigned>(problem.row_tiles);
    const unsigned tile_row = tile / row_tiles;
    row = tile_row;
    tile_in_row = tile - tile_row * row_tiles;
    const JoinEdge* const edges = problem.scratch.edges + tile + row;
    const SortedPair& pair = problem.tiles.pair;
    const int64_t a_live = pair.a.live(row);
    const int64_t b_live = pair.b.live(row);
    const int64_t begin = minimum(int64_t{tile_in_row} * P::kTile, a_live + b_live);
    const int64_t end = minimum(begin + P::kTile, a_live + b_live);
    a_ = edges[0].a;
    b_ = begin - a_;
    // Where keys are not sorted, edges contradict each other.
    a_count_ = static_cast<int>(clamp(edges[1].a, maximum(a_, end - b_live), minimum(a_ + (end - begin), a_live)) - a_);
    b_count_ = static_cast<int>(end - begin) - a_count_;
    run_end_ = clamp(edges[1].run_end - b_, int64_t{b_count_}, b_live - b_);
  }

  __device__ int size() const { return a_count_ + b_count_; }

  // Finds the partners of the thread's items, and the sums over the tile.
  __device__ Sums find_partners() {
    load();
    const Order order = problem_.tiles.order;
    const auto less = [&](Word x, Word y) { return order.less(x, y); };
    const auto a_code = [&](int i) { return order.encode(shared_.keys[i]); };
    const auto b_code = [&](int j) { return order.encode(shared_.keys[a_count_ + j]); };
    const bool leaves = run_end_ > b_count_;  // whether A's last key has partners behind the tile
    const Word last_key = a_code(maximum(a_count_ - 1, 0));
    const bool has_before = problem_.keep_b && a_ > 0;
    const Word before = has_before ? problem_.tiles.a_code(row, a_ - 1) : Word{};

    const int diagonal = minimum(static_cast<int>(threadIdx.x) * kItems, size());
    first_a_ = merge_path(a_count_, b_count_, diagonal, a_code, b_code, less);
    int i = first_a_;
    int j = diagonal - i;
    int run_begin = -1, run_end = 0;  // the latest run of partners
    Sums sums{};
#pragma unroll
    for (int step = 0; step < kItems; ++step) {
      if (i + j >= size()) continue;
      if (i < a_count_ && (j >= b_count_ || !less(b_code(j), a_code(i)))) {
        const Word key = a_code(i);
        int end = j;
        if (j < b_count_ && !less(key, b_code(j))) {
          if (run_begin != j) {
            run_begin = j;
            run_end = galloping_partition_point(j + 1, b_count_, [&](int k) { return !less(key, b_code(k)); });
          }
          end = run_end;
        }
        const bool to_edge = end == b_count_ && leaves && !less(key, last_key);
        const unsigned span = static_cast<unsigned>(j) | (to_edge ? kBeyond : static_cast<unsigned>(end)) << 16;
        shared_.spans[step * P::kThreads + threadIdx.x] = span;
        is_a_ |= 1u << step;
        const int64_t made = made_by(span);
        sums.rows += made;
        sums.entries += made > 0;
        ++i;
      } else {
        const bool paired = i > 0 ? !less(a_code(i - 1), b_code(j)) : has_before && !less(before, b_code(j));
        if (problem_.keep_b && !paired) {
          is_alone_ |= 1u << step;
          ++sums.alone;
        }
        ++j;
      }
    }
    Sums total;
    sums.rows = minimum(sums.rows, kRowStart - 1);
    typename Shared<Order>::Scan(shared_.scan).ExclusiveScan(sums, before_, Sums{}, AddSums{}, total);
    __syncthreads();
    return total;
  }

  // Notes the entries that make rows [begin, end) of the tile.
  __device__ void place(int64_t begin, int64_t end) {
    unsigned spans[kItems];
#pragma unroll
    for (int step = 0; step < kItems; ++step) spans[step] = shared_.spans[step * P::kThreads + threadIdx.x];
    __syncthreads();
    int64_t start = before_.rows;
    int entry = before_.entries;
    int a = first_a_;
#pragma unroll
    for (int step = 0; step < kItems; ++step) {
      if (!((is_a_ >> step) & 1)) continue;
      const unsigned span = spans[step];
      const int64_t made = made_by(span);
      if (made > 0) {
        const bool covers = start <= begin && begin < start + made;
        if (covers) {
          shared_.skipped = begin - start;
          shared_.first_entry = entry;
        }
        shared_.starts[entry] = covers ? 0 : static_cast<int>(clamp<int64_t>(start - begin, -1, end - begin));
        shared_.origins[entry] = static_cast<unsigned>(a) | (has_partner(span) ? span & 0xffff : kNone) << 16;
        ++entry;
        start += made;
      }
      ++a;
    }
    __syncthreads();
  }

  // Writes rows [begin, end) of the tile, which have been placed, of `entries` entries; the first goes to `slot`.
  __device__ void write(int64_t begin, int64_t end, int entries, int64_t slot) const {
    const int rows = static_cast<int>(end - begin);
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
    const int share = ceil_div(ceil_div(rows, P::kThreads / kWarp), kWarp) * kWarp;
    const int share_end = minimum(rows, (warp + 1) * share);
    const int first_entry = shared_.first_entry;
    const int64_t skipped = shared_.skipped;
    const int64_t out = row * problem_.size + slot;
    int entry = warp_partition_point(0, entries, [&](int e) { return shared_.starts[e] <= warp * share; }) - 1;
    for (int base = warp * share; base < share_end; base += kWarp) {
      // Every entry makes a row, so the 32 rows from `base` on are made by the next 32 entries at most.
      const int next = entry + 1 + lane;
      const int distance = next < entries ? shared_.starts[next] - base : kWarp + 1;
      const unsigned marks = or_lanes(distance < kWarp ? 1u << distance : 0u);
      const int mine = entry + __popc(marks & ((2u << lane) - 1));
      entry += __popc(__ballot_sync(kAllLanes, distance <= kWarp));
      const int position = base + lane;
      if (position >= share_end) continue;
      const unsigned origin = shared_.origins[mine];
      const int64_t partner =
          b_ + (origin >> 16) + (position - shared_.starts[mine]) + (mine == first_entry ? skipped : 0);
      problem_.a_indices.set(out + position, a_ + (origin & 0xffff));
      problem_.b_indices.set(out + position, origin >> 16 == kNone ? -1 : partner);
    }
  }

  // Notes the thread's items of B without a partner, of which the tile's first goes to `slot` of the row's list.
  __device__ void list_alone(int64_t slot) const {
    const int64_t out = row * problem_.tiles.pair.b.length + slot + before_.alone;
    int64_t b = b_ + minimum(static_cast<int>(threadIdx.x) * kItems, size()) - first_a_;
    int listed = 0;
    for (int step = 0; step < kItems; ++step) {
      // Each step took an item of A or of B.
      if ((is_alone_ >> step) & 1) {
        const int64_t end = problem_.tiles.pair.b.length;
        if (slot + before_.alone + listed < end) problem_.scratch.alone_items.set(out + listed, b);
        ++listed;
      }
      b += !((is_a_ >> step) & 1);
    }
  }

  int64_t row;
  unsigned tile_in_row;

 private:
  __device__ void load() {
    const SortedPair& pair = problem_.tiles.pair;
    const Word* const a = static_cast<const Word*>(pair.a.keys) + row * pair.a.stride + a_;
    const Word* const b = static_cast<const Word*>(pair.b.keys) + row * pair.b.stride + b_ - a_count_;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * P::kThreads + threadIdx.x;
      if (position < size()) copy_async(shared_.keys + position, (position < a_count_ ? a : b) + position);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
  }

  __device__ static bool has_partner(unsigned span) { return span >> 16 != (span & 0xffff); }
  __device__ int64_t made_by(unsigned span) const {
    const int64_t end = span >> 16 == kBeyond ? run_end_ : span >> 16;
    return maximum<int64_t>(end - (span & 0xffff), problem_.keep_a);
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
  int64_t a_;  // the tile's first item of A, and of B
  int64_t b_;
  int a_count_;
  int b_count_;
  int64_t run_end_;    // where the run that leaves the tile ends, counted from b_; b_count_ if there is none
  int first_a_;        // the thread's first item of A
  unsigned is_a_ = 0;  // a bit a step
  unsigned is_alone_ = 0;
  Sums before_;  // what the earlier threads make
};

// ---- The passes
// -------------------------------------------------------------------------------------------------------

template <typename Order>
__global__ void __launch_bounds__(Problem<Order>::kThreads, Problem<Order>::kBlocksPerProcessor)
    join_tiles(const __grid_constant__ Problem<Order> problem) {
  __shared__ Shared<Order> shared;
  const JoinOperands::Scratch& scratch = problem.scratch;
  const unsigned ticket = static_cast<unsigned>(take_ticket(scratch.zeroed, shared.ticket));
  Tile<Order> tile(problem, shared, ticket);
  Sums total{};
  if (tile.size() > 0) total = tile.find_partners();
  const bool is_light = total.rows <= kJoinHeavy;
  if (is_light && total.rows > 0) tile.place(0, total.rows);

  const int64_t tiles = problem.tiles.pair.rows * problem.row_tiles;
  const bool is_first = tile.tile_in_row == 0;
  const bool is_last = tile.tile_in_row == problem.row_tiles - 1;
  if (threadIdx.x < kWarp) {
    const int64_t slot =
        row_look_back(scratch.row_words, tiles, ticket, is_first, total.rows, total.rows > 0 || is_last);
    if (threadIdx.x == 0) {
      shared.slot = slot;
      if (is_last) scratch.paired[tile.row] = minimum(slot + total.rows, kRowStart - 1);
    }
  } else if (threadIdx.x < 2 * kWarp && problem.keep_b) {
    const int64_t slot =
        row_look_back(scratch.alone_words, tiles, ticket, is_first, total.alone, total.alone > 0 || is_last);
    if (threadIdx.x == kWarp) {
      shared.alone_slot = slot;
      if (is_last) scratch.alone[tile.row] = slot + total.alone;
    }
  }
  __syncthreads();

  if (total.alone > 0) tile.list_alone(shared.alone_slot);
  const int64_t rows = clamp<int64_t>(problem.size - shared.slot, 0, total.rows);
  if (rows == 0) return;
  if (is_light) {
    tile.write(0, rows, total.entries, shared.slot);
  } else if (threadIdx.x == 0) {
    const uint64_t units = ceil_div(rows, kJoinUnit);
    const uint64_t state = atomicAdd(reinterpret_cast<unsigned long long*>(scratch.heavy_state), kHeavyTile + units);
    scratch.heavy[state / kHeavyTile] = {static_cast<int64_t>(state % kHeavyTile), shared.slot, rows, ticket};
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
    Tile<Order> tile(problem, shared, static_cast<unsigned>(heavy.tile));
    const Sums total = tile.find_partners();
    tile.place(begin, end);
    tile.write(begin, end, total.entries, heavy.slot + begin);
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
  find_edges<<<ceil_div<int64_t>(edges, kEdgeThreads / kWarp), kEdgeThreads, 0, stream>>>(problem);
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
