// scan on CUDA, in one pass over memory: a block loads a tile into registers, its sum goes into a look-back over the
// tiles, and the tile is finished with what comes back. A warp's items lie in rows of 32 vectors of 16 bytes, each
// scanned by shuffles where it was loaded, so nothing is transposed through shared memory.
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

// Offsets in a tile are counted in the order of the scan; in a reverse scan that is from the end of its memory.
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

// Blocks on an SM, as many as the registers allow without a spill.
template <bool kSegmented, typename Operator>
constexpr int kBlocks =
    sizeof(typename Operator::State) > 4 || (kSegmented && sizeof(typename Operator::Element) == 1) ? 2
    : kSegmented                                                                                    ? 3
                                                                                                    : 4;

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

// With kSegmented, tiles lie on a grid over all rows, and the scan restarts at heads and at the start of each row;
// without, tiles lie on a grid of each row's own.
template <bool kSegmented, typename Operator>
__global__ void __launch_bounds__(kThreads, kBlocks<kSegmented, Operator>)
    scan_tiles(ScanTask<Operator> task, Operator op) {
  using State = typename Operator::State;
  using Element = typename Operator::Element;
  using Shape = Shape<Operator>;
  using Sums = Sums<Operator, kSegmented>;
  using Sum = typename Sums::Value;
  constexpr int kRows = Shape::kRows;
  constexpr int kVector = Shape::kVector;
  __shared__ int64_t ticket;
  __shared__ alignas(16) uint8_t restarts[kSegmented ? Shape::kTile : 16];
  __shared__ Sum warp_sums[kWarps];
  __shared__ Sum shared_before;

  const Segments& segments = task.segments;
  const Sums sums{op};
  if (kSegmented) {
    for (int i = threadIdx.x; i < Shape::kTile / 16; i += kThreads) reinterpret_cast<uint4*>(restarts)[i] = uint4{};
  }
  const int64_t index = take_ticket(task.look_back, ticket);
  const int64_t tile_row = kSegmented ? 0 : index / task.tiles;
  const int64_t tile = index - tile_row * task.tiles;  // in the order of the scan
  const int64_t grid_begin = tile_row * segments.length;
  const int64_t grid_end = kSegmented ? segments.total() : grid_begin + segments.length;
  const int64_t tile_in_memory = task.reverse ? task.tiles - 1 - tile : tile;
  const int64_t begin = grid_begin + tile_in_memory * Shape::kTile;

  // Places in the tile's memory, from here on: those from `live` on are dead, and, with a count a row and several rows
  // in a tile, so may others be.
  const bool mixes_rows = kSegmented && segments.rows > 1;
  const bool counts_by_item = mixes_rows && segments.counts.data;
  const bool knows_rows = mixes_rows && (task.totals.data || Operator::kGivesIndex);
  const int size = static_cast<int>(minimum<int64_t>(grid_end - begin, Shape::kTile));
  const int live =
      mixes_rows ? size : static_cast<int>(clamp<int64_t>(grid_begin + segments.live(tile_row) - begin, 0, size));
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
  if (kSegmented) {
    mark_restarts<Shape::kTile>(restarts, task.restarts, begin,
                                {task.listed[tile_in_memory], task.listed[tile_in_memory + 1]}, task.reverse);
    __syncthreads();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      heads |= restart_bits<kVector>(restarts + Shape::offset(row)) << (row * kVector);
    }
  }
  const auto heads_up_to = [&](int row, int k) {  // of a vector's items 0 .. k
    return kSegmented ? heads >> (row * kVector) & ((2u << k) - 1) : 0u;
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
    const unsigned restarting = kSegmented ? __ballot_sync(0xffffffffu, heads_up_to(row, kVector - 1) != 0) : 0u;
    const auto in_row = scan_warp<kSegmented>(op, states[row][kVector - 1], restarting);
    const Sum before = sums(warp_sum, in_row.before);
    before_vector[row] = Sums::state(before);
    if (!Sums::restarted(before)) open |= 1u << row;
    warp_sum = sums(warp_sum, in_row.all);
  }

  // The tile's sum, and what comes before the tile.
  const auto in_block = scan_warps<kWarps>(warp_sums, warp_sum, sums.identity(), sums);
  if (threadIdx.x < kWarp) {
    uint64_t* const slots = task.look_back + 1 + tile_row * LookBackLayout{task.tiles}.words(sizeof(Sum));
    const Sum before_tile = look_back(slots, task.tiles, tile, in_block.all, sums.identity(), sums);
    if (threadIdx.x == 0) {
      shared_before = before_tile;
      if (task.totals.data && !mixes_rows && tile == task.tiles - 1) {
        task.totals.store(tile_row, op.finish(Sums::state(sums(before_tile, in_block.all)), grid_begin));
      }
    }
  }
  __syncthreads();
  const State before_warp = Sums::state(sums(shared_before, in_block.before));

  // Finish and store.
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int first = place_of(row);
    const State before =
        !kSegmented || open >> row & 1 ? op.combine(before_warp, before_vector[row]) : before_vector[row];
    typename Operator::Result results[kVector];
    State previous = before;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const State sum = heads_up_to(row, k) ? states[row][k] : op.combine(before, states[row][k]);
      const State kept = !task.exclusive ? sum : heads_up_to(row, k) >> k ? op.identity() : previous;
      previous = sum;
      const int place = first + (task.reverse ? kVector - 1 - k : k);
      int64_t row_begin = grid_begin;
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

template <bool kSegmented, typename Operator>
void launch(const Call& call, const ScanOperands& operands, const Operator& op, CUstream_st* stream) {
  using Shape = Shape<Operator>;
  using State = typename Operator::State;
  const Segments& segments = operands.segments;
  Workspace workspace(call.results.back().data, call.results.back().size());
  const auto scratch = operands.layout(workspace, sizeof(State));
  const auto tiles = kSegmented ? ScanOperands::Tiles{ceil_div<int64_t>(segments.total(), Shape::kTile), 1}
                                : operands.tiles(Shape::kTile);
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
  if (segments.total() == 0) {
    if (!operands.totals || segments.rows == 0) return;
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(segments.rows, kThreads));
    fill_totals<<<blocks, kThreads, 0, stream>>>(task.totals, segments.rows, op);
    return check_launch(call);
  }
  const int64_t words =
      1 + tiles.rows * LookBackLayout{tiles.per_row}.words(sizeof(typename Sums<Operator, kSegmented>::Value));
  check(call, cudaMemsetAsync(scratch.look_back, 0, words * sizeof(uint64_t), stream));
  if (kSegmented) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>((tiles.count() + 1) * kWarp, kThreads));
    list_heads<<<blocks, kThreads, 0, stream>>>(segments, tiles.count(), Shape::kTile, operands.reverse,
                                                scratch.listed);
    check_launch(call);
  }
  scan_tiles<kSegmented><<<static_cast<unsigned>(tiles.count()), kThreads, 0, stream>>>(task, op);
  check_launch(call);
}

}  // namespace

void scan(const Call& call, CUstream_st* stream) {
  const ScanOperands operands(call);
  const auto has_tiles_by_row = [&](int64_t state_bytes) {
    return operands.has_tiles_by_row(operands.tile_items(state_bytes));
  };
  // Sums have a kernel of their own in the form that matters most; products share the segmented one.
  if (operands.kind == OperatorKind::kAdd && has_tiles_by_row(operands.state_bytes(call))) {
    return dispatch_arithmetic<ArithmeticKind::kSum>(call, operands.dtype, false,
                                                     [&](auto op) { launch<false>(call, operands, op, stream); });
  }
  operands.dispatch<true>(call, [&](auto op) {
    if constexpr (!requires { op.multiply; }) {
      if (has_tiles_by_row(sizeof(typename decltype(op)::State))) return launch<false>(call, operands, op, stream);
    }
    launch<true>(call, operands, op, stream);
  });
}

}  // namespace cuda

}  // namespace mgpu
