// The kernels of reduce_rows. Rows and segment ends are consumed in one order, in equal tiles (unit_tiles.cuh). A
// worker, a few neighbouring lanes, takes one row after the other; each lane has a vector of columns. The block joins
// the states of its workers' first and last segments, and a second kernel joins those of the tiles.
#pragma once

#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/reduce/unit_tiles.cuh"
#include "ops/reduce_rows/plan.h"

namespace mgpu::cuda::row_reducing {

constexpr int kThreads = kReduceRowsThreads;
constexpr int kRowsInFlight = 8;
constexpr int kJoinTiles = 32;         // per block, one warp each
constexpr int kJoinSerial = 16;        // tiles of a segment that a warp joins; if there are more, the whole block does
constexpr uint16_t kNoEntry = 0xffff;  // of an end that closes no result
static_assert(kReduceRowsTileUnits < kNoEntry);

// The elements that a lane reads at once: 16 bytes of them, and at most 32 bytes of states.
template <typename Operator>
constexpr int kMostVector =
    static_cast<int>(minimum<size_t>(16 / sizeof(typename Operator::Element), 32 / sizeof(typename Operator::State)));

template <typename Operator>
struct RowReduction {
  using State = typename Operator::State;
  const typename Operator::Element* x;
  RowSources sources;
  UnitTiles tiles;
  bool finds_tiles;  // whether each block searches for its own tile, if rows are contiguous
  int64_t slices;
  int64_t vectors;
  int lanes;
  int workers;
  int worker_units;
  int64_t* first_end;  // of each tile, or -1
  State* opening;      // of the rows in each tile before its first end
  State* open;         // of the rows in each tile after its last end
  ResultVector<Operator> result;

  // Shared memory of a block of reduce_tiles: two states per thread, six bytes per unit, where each worker's ends
  // begin, and whether it has one.
  MGPU_HOST_DEVICE int64_t shared_bytes(int vector) const {
    return 2 * kThreads * vector * static_cast<int64_t>(sizeof(State)) + unit_slots() * int64_t{6} +
           (kThreads + 1) * 4 + kThreads;
  }
  // Somewhat more than the units of a tile, as a worker also reads the sources of rows after its last one.
  MGPU_HOST_DEVICE int unit_slots() const { return tiles.units + kRowsInFlight; }
};

// A few neighbouring elements or results, moved as one word.
template <typename Item, int kCount>
struct Neighbours {
  static constexpr int kBytes = sizeof(Item) * kCount;
  using Word =
      std::conditional_t<kBytes % 16 == 0, uint4,
                         std::conditional_t<kBytes == 8, uint2,
                                            std::conditional_t<kBytes == 4, uint32_t,
                                                               std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>>;
  static constexpr int kWords = kBytes / sizeof(Word);
  Item items[kCount];

  __device__ __forceinline__ static Neighbours load(const Item* from) {
    Word words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(from)[i];
    Neighbours neighbours;
    memcpy(&neighbours, words, kBytes);
    return neighbours;
  }
  __device__ __forceinline__ void store(Item* to) const {
    Word words[kWords];
    memcpy(words, items, kBytes);
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
  }
};

// Stores an entry of the results, from `column` on.
template <int kVector, typename Operator>
__device__ __forceinline__ void store_row(const RowReduction<Operator>& reduction, const Operator& op, int64_t entry,
                                          int64_t column, const typename Operator::State (&states)[kVector]) {
  using Result = typename Operator::Result;
  const int64_t at = entry * reduction.sources.width + column;
  int64_t row_begin = 0;
  if constexpr (Operator::kGivesIndex) {
    const Segments& segments = reduction.tiles.ends.segments;
    if (segments.rows > 1) row_begin = entry / segments.heads_count * reduction.sources.count;
  }
  Neighbours<Result, kVector> results;
#pragma unroll
  for (int k = 0; k < kVector; ++k) results.items[k] = op.finish(states[k], row_begin);
  if constexpr (Operator::kGivesIndex) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) reduction.result.store(at + k, results.items[k]);
  } else {
    results.store(static_cast<Result*>(reduction.result.data) + at);
  }
}

// Reduces tiles of rows. kGathers says that the items are the rows at given indices.
template <int kVector, bool kGathers, typename Operator>
__global__ void __launch_bounds__(kThreads, 3) reduce_tiles(RowReduction<Operator> reduction, Operator op) {
  using State = typename Operator::State;
  using Items = Neighbours<typename Operator::Element, kVector>;
  extern __shared__ uint4 shared[];
  State* const exchanged = reinterpret_cast<State*>(shared);  // by vector place, then by thread
  State* const openings = exchanged + kThreads * kVector;
  // `bounds` and `entries` have, for each end, the number of items before it and its entry of the results, relative to
  // the first; then, for each gathered row, the low and the high bits of its source.
  int* const bounds = reinterpret_cast<int*>(openings + kThreads * kVector);
  int* const worker_ends = bounds + reduction.unit_slots();
  uint16_t* const entries = reinterpret_cast<uint16_t*>(worker_ends + kThreads + 1);
  uint8_t* const has_ended = reinterpret_cast<uint8_t*>(entries + reduction.unit_slots());

  const int64_t tile_index = blockIdx.x / static_cast<unsigned>(reduction.slices);
  const int64_t slice = blockIdx.x - tile_index * reduction.slices;
  wait_for_last_kernel();
  start_next_kernel();
  TileUnits tile;
  if (!kGathers && reduction.finds_tiles) {
    tile = reduction.tiles.template find<kThreads>(tile_index);
  } else {
    tile = reduction.tiles[tile_index];
  }
  // An end's entry is computed once here, instead of in the nine places where a lane may close a segment. This makes
  // 14% less code, and rows by shuffled ids take 0.226 ms instead of 0.268.
  const int64_t first_entry = tile.first_end - 2 * reduction.tiles.ends.row(tile.first_end) - 1;
#pragma unroll 4
  for (int i = threadIdx.x; i < tile.ends; i += kThreads) {
    const int64_t end = tile.first_end + i;
    bounds[i] = static_cast<int>(clamp<int64_t>(reduction.tiles.ends[end] - tile.first_item, 0, tile.items));
    const int64_t entry = reduction.tiles.ends.entry(end);
    entries[i] = entry < 0 ? kNoEntry : static_cast<uint16_t>(entry - first_entry);
  }
  if constexpr (kGathers) {
    // Sources are computed once here, not by all lanes of a worker: branches on the width of indices and divisions by
    // the length of a problem would serialize loads.
#pragma unroll 4
    for (int i = threadIdx.x; i < tile.items; i += kThreads) {
      const int64_t source = reduction.sources(tile.first_item + i);
      bounds[tile.ends + i] = static_cast<int>(source);
      entries[tile.ends + i] = static_cast<uint16_t>(source >> 32);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i <= reduction.workers; i += kThreads) {
    const int diagonal = minimum(i * reduction.worker_units, tile.size);
    worker_ends[i] = partition_point(maximum(0, diagonal - tile.items), minimum(diagonal, tile.ends),
                                     [&](int j) { return bounds[j] + j < diagonal; });
  }
  __syncthreads();

  const int worker = static_cast<int>(threadIdx.x) / reduction.lanes;
  const int lane = static_cast<int>(threadIdx.x) - worker * reduction.lanes;
  const int64_t vector = slice * reduction.lanes + lane;
  const int64_t column = vector * kVector;
  const bool active = worker < reduction.workers && vector < reduction.vectors;

  const auto store = [&](int end, const State(&closed_states)[kVector]) {
    if (entries[end] == kNoEntry) return;
    store_row<kVector>(reduction, op, first_entry + entries[end], column, closed_states);
  };
  State states[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) states[k] = op.identity();
  bool closed = false;
  int first_closed = 0;
  if (active) {
    int end = worker_ends[worker];
    const int last_end = worker_ends[worker + 1];
    const int first_row = minimum(worker * reduction.worker_units, tile.size) - end;
    const int last_row = minimum((worker + 1) * reduction.worker_units, tile.size) - last_end;
    const int64_t width = reduction.sources.width;
    const auto* const x = reduction.x + column;
    const auto bound = [&] { return end < last_end ? bounds[end] : 0x7fffffff; };
    const auto close = [&] {
      if (!closed) {
        closed = true;
        first_closed = end;
#pragma unroll
        for (int k = 0; k < kVector; ++k) openings[k * kThreads + threadIdx.x] = states[k];
      } else {
        store(end, states);
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) states[k] = op.identity();
      ++end;
    };
    int next = bound();
#pragma unroll 1
    for (int row = first_row; row < last_row; row += kRowsInFlight) {
      int64_t sources[kRowsInFlight];
      unsigned missing = 0;  // a bit for each gathered row whose index is out of range
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if constexpr (kGathers) {
          const int at = tile.ends + row + i;
          sources[i] = int64_t{static_cast<int16_t>(entries[at])} << 32 | static_cast<uint32_t>(bounds[at]);
          if (sources[i] < 0) missing |= 1u << i;
        } else {
          sources[i] = tile.first_item + row + i;
        }
      }
      const auto exists = [&](int i) { return row + i < last_row && !(kGathers && missing >> i & 1); };
      Items items[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (exists(i)) items[i] = Items::load(x + sources[i] * width);
      }
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (row + i >= last_row) break;
        while (next <= row + i) {
          close();
          next = bound();
        }
        if (!exists(i)) continue;
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          states[k] = op.combine(states[k], op.extract(items[i].items[k], sources[i]));
        }
      }
    }
    while (end < last_end) close();
  }

  // Scans, over the workers, the states that each leaves open; the scan restarts at workers with an end.
  bool ended = closed;
  const auto exchange = [&] {
#pragma unroll
    for (int k = 0; k < kVector; ++k) exchanged[k * kThreads + threadIdx.x] = states[k];
    has_ended[threadIdx.x] = ended;
    __syncthreads();
  };
  exchange();
  for (int distance = 1; distance < reduction.workers; distance *= 2) {
    const int from = static_cast<int>(threadIdx.x) - distance * reduction.lanes;
    const bool takes = from >= 0 && !ended;
    if (takes) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) states[k] = op.combine(exchanged[k * kThreads + from], states[k]);
      ended = has_ended[from];
    }
    __syncthreads();
    exchange();
  }
  if (slice == 0 && threadIdx.x == 0) reduction.first_end[tile_index] = tile.ends > 0 ? tile.first_end : -1;
  if (!active) return;
  const int64_t place = tile_index * reduction.sources.width + column;
  if (worker == reduction.workers - 1) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) reduction.open[place + k] = states[k];
  }
  if (!closed) return;
  const int before = static_cast<int>(threadIdx.x) - reduction.lanes;
  State opening[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    opening[k] = openings[k * kThreads + threadIdx.x];
    if (before >= 0) opening[k] = op.combine(exchanged[k * kThreads + before], opening[k]);
  }
  if (before >= 0 && has_ended[before]) {
    store(first_closed, opening);
  } else {
#pragma unroll
    for (int k = 0; k < kVector; ++k) reduction.opening[place + k] = opening[k];
  }
}

// One warp per tile combines the states that the preceding tiles left open, from the last tile with an end on, with the
// segment of its tile's first end.
template <typename Operator>
__global__ void __launch_bounds__(kJoinTiles* kWarp) join_tiles(RowReduction<Operator> reduction, Operator op) {
  using State = typename Operator::State;
  __shared__ State parts[kJoinTiles][kWarp];
  __shared__ int64_t long_begin[kJoinTiles];  // the first tile of a part that the whole block joins, or -1
  const int64_t width = reduction.sources.width;
  const auto slices = static_cast<unsigned>(ceil_div<int64_t>(width, kWarp));
  const int64_t first_tile = int64_t{blockIdx.x / slices} * kJoinTiles;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = int64_t{blockIdx.x % slices} * kWarp + lane;
  const bool active = column < width;
  const SegmentEnds& ends = reduction.tiles.ends;
  wait_for_last_kernel();

  const auto first_end_of = [&](int64_t tile) { return tile < reduction.tiles.tiles ? reduction.first_end[tile] : -1; };
  const auto store = [&](int64_t tile, State before) {
    const State state[1] = {op.combine(before, reduction.opening[tile * width + column])};
    store_row<1>(reduction, op, ends.entry(reduction.first_end[tile]), column, state);
  };
  const auto add_tiles = [&](int64_t begin, int64_t end, int step) {
    State state = op.identity();
#pragma unroll 8
    for (int64_t i = begin; i < end; i += step) state = op.combine(state, reduction.open[i * width + column]);
    return state;
  };

  const int64_t tile = first_tile + warp;
  const int64_t end = first_end_of(tile);
  int64_t begin = tile;
  bool joins = end > 0 && ends.entry(end) >= 0;
  if (joins) begin = clamp<int64_t>((ends[end - 1] + end - 1) / reduction.tiles.units, 0, tile);
  const bool is_long = joins && tile - begin > kJoinSerial;
  if (lane == 0) long_begin[warp] = is_long ? begin : -1;
  if (joins && !is_long && active) store(tile, add_tiles(begin, tile, 1));
  if (!__syncthreads_or(is_long)) return;
  for (int i = 0; i < kJoinTiles; ++i) {
    if (long_begin[i] < 0) continue;
    if (active) parts[warp][lane] = add_tiles(long_begin[i] + warp, first_tile + i, kJoinTiles);
    __syncthreads();
    if (warp == 0 && active) {
      State state = op.identity();
      for (int part = 0; part < kJoinTiles; ++part) state = op.combine(state, parts[part][lane]);
      store(first_tile + i, state);
    }
    __syncthreads();
  }
}

}  // namespace mgpu::cuda::row_reducing
