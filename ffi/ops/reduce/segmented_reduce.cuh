// Items and segment ends are consumed in one order, in equal tiles (unit_tiles.cuh). A tile stores the results that its
// ends close, but for its first end: a second kernel joins the parts of that segment.
#pragma once

#include "cuda/block/scan.cuh"
#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/reduce/plan.h"
#include "ops/reduce/unit_tiles.cuh"

namespace mgpu::cuda::segment_reducing {

constexpr int kThreads = segmented_reduce_shape(4).threads;
constexpr int kMaxUnmarkedEnds = 8;  // a tile with up to so many ends does not mark their positions
constexpr int kJoinThreads = 256;
constexpr int kJoinTiles = 8;  // the tiles that a thread reads per step, if a block looks back

inline UnitTiles unit_tiles(const SegmentTiling& tiling, int64_t* items_before) {
  return {tiling.ends, tiling.tiles(), SegmentTiling::tile_units(tiling.largest_bytes), items_before};
}
inline unsigned join_blocks(int64_t tiles) { return static_cast<unsigned>(ceil_div<int64_t>(tiles, kJoinThreads)); }

template <typename Operator>
constexpr int64_t state_bytes() {
  using Element = typename Operator::Element;
  int64_t bytes = sizeof(typename Operator::State);
  if constexpr (IsItem<Element>) bytes = maximum<int64_t>(bytes, item_shape<Element>().size);
  return bytes;
}

// The places of a tile: its items, preceded by earlier items of the vector in which the first one lies. A warp has rows
// of places, and a lane has a run of neighbouring places in each row.
template <typename Operator>
struct Shape {
  static constexpr int kVector = Vector<typename Operator::Element>::kItems;
  static constexpr int kItems = segmented_reduce_shape(state_bytes<Operator>()).items;
  static constexpr int kPlaces = kThreads * kItems;
  static constexpr int kRun = kVector < 8 ? maximum(2 * kVector, 4) : kVector;
  static constexpr int kRowPlaces = kRun * kWarp;
  static constexpr int kRows = kItems / kRun;
};

template <typename Operator>
struct SegmentedReduction {
  using State = typename Operator::State;
  SourceOf<typename Operator::Element> x;
  bool aligned;
  UnitTiles tiles;
  State* opening;             // the states of the items in each tile before its first end
  SinceRestart<State>* open;  // the states of the items in each tile after its last end
  ResultVector<Operator> result;
};

template <int kRun>
struct alignas(kRun) Marks {
  unsigned words[kRun / 4];

  __device__ __forceinline__ bool operator[](int i) const { return (words[i / 4] & 0xffu << (i % 4 * 8)) != 0; }
  __device__ __forceinline__ bool any() const {
    unsigned all = 0;
#pragma unroll
    for (const unsigned word : words) all |= word;
    return all != 0;
  }
};

template <typename Operator>
struct TileMemory {
  using State = typename Operator::State;
  State* sums;        // the sums of the items of a run since its last end, up to each place
  State* before_run;  // the sums of the items of the row of places since its last end, before each run
  State* row_sums;
  uint8_t* closes;  // whether an end follows the place
  int* bounds;      // the places of ends, stored backwards from the end of the sums' memory
};

// The first item has place `lead`, and `limit` follows the last one.
struct TilePlaces {
  int64_t origin;  // the position of place 0 in the array
  int lead;
  int limit;
};

// What is known of a tile's ends without a division for each.
struct TileEnds {
  int64_t row_begin;
  int64_t first_entry;  // the result that the first end closes
  int own_heads;        // ends that are heads in the first end's row of the batch
};

template <typename Operator>
using RowVectors =
    Vector<typename Operator::Element>[Shape<Operator>::kRows][Shape<Operator>::kRun / Shape<Operator>::kVector];

template <typename Operator>
__device__ __forceinline__ int place_of(int row) {
  const int first_row = threadIdx.x / kWarp * Shape<Operator>::kRows;
  const int lane = threadIdx.x % kWarp;
  return (first_row + row) * Shape<Operator>::kRowPlaces + lane * Shape<Operator>::kRun;
}

// `x` is aligned, and `limit` is a place.
template <typename Operator>
__device__ __forceinline__ void load_vectors(SourceOf<typename Operator::Element> x, int limit,
                                             RowVectors<Operator>& vectors) {
  using Shape = Shape<Operator>;
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row) {
#pragma unroll
    for (int k = 0; k < Shape::kRun; k += Shape::kVector) {
      const int place = place_of<Operator>(row) + k;
      if (place < limit) {
        vectors[row][k / Shape::kVector] = Vector<typename Operator::Element>::load(x, place);
      }
    }
  }
}

template <typename Operator>
__device__ __forceinline__ void load_items(const SegmentedReduction<Operator>& reduction, const TilePlaces& places,
                                           RowVectors<Operator>& vectors) {
  using Shape = Shape<Operator>;
  const auto x = reduction.x + places.origin;
  if (reduction.aligned && places.origin + Shape::kPlaces <= reduction.tiles.total_items) {
    load_vectors<Operator>(x, places.limit, vectors);
  } else {
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row) {
#pragma unroll
      for (int k = 0; k < Shape::kRun; ++k) {
        const int place = place_of<Operator>(row) + k;
        if (place >= places.lead && place < places.limit) {
          vectors[row][k / Shape::kVector].items[k % Shape::kVector] = x[place];
        }
      }
    }
  }
}

// Places outside the tile get identities.
template <typename Operator>
__device__ __forceinline__ void extract_run(const Operator& op, const TilePlaces& places, int row,
                                            const RowVectors<Operator>& vectors,
                                            typename Operator::State (&states)[Shape<Operator>::kRun]) {
  using Shape = Shape<Operator>;
  constexpr int kVector = Shape::kVector;
  const int place = place_of<Operator>(row);
  const int row_place = place - static_cast<int>(threadIdx.x % kWarp) * Shape::kRun;
  const auto extract = [&](int k) {
    return op.extract(vectors[row][k / kVector].items[k % kVector], places.origin + place + k);
  };
  if (row_place < places.lead || row_place + Shape::kRowPlaces > places.limit) {
#pragma unroll
    for (int k = 0; k < Shape::kRun; ++k) {
      states[k] = place + k >= places.lead && place + k < places.limit ? extract(k) : op.identity();
    }
  } else {
#pragma unroll
    for (int k = 0; k < Shape::kRun; ++k) states[k] = extract(k);
  }
}

// The states that a warp leaves in a tile with few ends.
template <typename State>
struct WarpParts {
  State opening;
  State open;
  int first;  // the number of the warp's first end in the tile
  int ends;
};

template <typename Operator>
__device__ __forceinline__ typename Operator::State combine_run(
    const Operator& op, const typename Operator::State (&states)[Shape<Operator>::kRun]) {
  typename Operator::State state = states[0];
#pragma unroll
  for (int k = 1; k < Shape<Operator>::kRun; ++k) state = op.combine(state, states[k]);
  return state;
}

template <typename Operator>
struct LoadedRuns {
  using States = typename Operator::State[Shape<Operator>::kRun];

  const Operator& op;
  const TilePlaces& places;
  const RowVectors<Operator>& vectors;

  __device__ __forceinline__ void items(int row, States& states) const {
    extract_run(op, places, row, vectors, states);
  }
  // Returns a place after those of all ends if the lane has no end.
  __device__ __forceinline__ int place_of_end(const SegmentEnds& ends, const TileUnits& units) const {
    const int lane = threadIdx.x % kWarp;
    int own_place = places.lead;
    if (lane < units.ends) {
      const int64_t place = ends[units.first_end + lane] - places.origin;
      own_place = static_cast<int>(clamp<int64_t>(place, places.lead, places.limit));
    }
#pragma unroll
    for (int distance = 1; distance < kMaxUnmarkedEnds; distance *= 2) {  // the places ascend, for any heads
      const int below = __shfl_up_sync(~0u, own_place, distance);
      if (lane >= distance) own_place = maximum(own_place, below);
    }
    return lane < units.ends ? own_place : Shape<Operator>::kPlaces + 1;
  }
};

template <typename Operator>
__device__ __forceinline__ void store_segment(const SegmentedReduction<Operator>& reduction, const Operator& op,
                                              int64_t end, const typename Operator::State& state) {
  const SegmentEnds& ends = reduction.tiles.ends;
  const int64_t entry = ends.entry(end);
  if (entry < 0) return;
  reduction.result.store(entry, op.finish(state, ends.row(end) * ends.segments.length));
}

template <typename Operator>
__device__ __forceinline__ typename Operator::State fold_lanes(const Operator& op,
                                                               const typename Operator::State& state) {
  using State = typename Operator::State;
  return fold_warp(state, [&](const State& a, const State& b) { return op.combine(a, b); });
}

// Reduces a tile with few ends: lane i has the place of end i. If items may be reordered, a warp does not fold
// its lanes in each row of places. An end belongs to the warp that has the item before it, or to the first warp.
template <typename Operator>
__device__ __forceinline__ void reduce_rows_to_ends(const SegmentedReduction<Operator>& reduction, const Operator& op,
                                                    const TileUnits& units, const TilePlaces& places,
                                                    const LoadedRuns<Operator>& runs,
                                                    WarpParts<typename Operator::State>* parts) {
  using State = typename Operator::State;
  using Shape = Shape<Operator>;
  constexpr int kRun = Shape::kRun;
  const SegmentEnds& ends = reduction.tiles.ends;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warp_begin = warp * Shape::kRows * Shape::kRowPlaces;
  const int own_place = runs.place_of_end(ends, units);
  const int first = warp == 0 ? 0 : __popc(__ballot_sync(~0u, own_place <= warp_begin));
  int next = first;
  int next_place = shuffle(own_place, next);
  State sum = op.identity();  // since the last end: of the lane if items may be reordered, else of the warp
  const auto add = [&](const State& state) {
    sum = op.combine(sum, Operator::kCommutes ? state : fold_lanes(op, state));
  };
  const auto total = [&] { return Operator::kCommutes ? fold_lanes(op, sum) : sum; };
  const auto close = [&] {
    const State state = total();
    if (lane == 0 && next == first) parts[warp].opening = state;
    if (lane == 0 && next > first) store_segment(reduction, op, units.first_end + next, state);
    sum = op.identity();
    next_place = shuffle(own_place, ++next);
  };
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row) {
    const int place = place_of<Operator>(row);
    const int row_end = warp_begin + (row + 1) * Shape::kRowPlaces;
    if (row_end - Shape::kRowPlaces >= places.limit) break;
    State states[kRun];
    // Extracting items here is
    // faster than in both branches.
    runs.items(row, states);
    if (next_place > row_end) {
      add(combine_run<Operator>(op, states));
    } else {
      int begin = 0;
      bool is_last;
      do {  // once for each end, and once for the items after the last
        is_last = next_place > row_end;
        State state = op.identity();
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          if (place + k >= begin && place + k < next_place) state = op.combine(state, states[k]);
        }
        add(state);
        begin = next_place;
        if (!is_last) close();
      } while (!is_last);
    }
  }
  while (next < units.ends && next_place <= warp_begin) close();  // true only if the tile has no items
  const State open = total();
  if (lane == 0) {
    parts[warp].open = open;
    parts[warp].first = first;
    parts[warp].ends = next - first;
  }
}

template <typename Operator>
__device__ __forceinline__ void join_warps(const SegmentedReduction<Operator>& reduction, const Operator& op,
                                           int64_t tile, const TileUnits& units,
                                           const WarpParts<typename Operator::State>* parts) {
  using State = typename Operator::State;
  constexpr int kWarps = kThreads / kWarp;
  const SegmentEnds& ends = reduction.tiles.ends;
  __syncthreads();
  if (threadIdx.x > kWarps || (threadIdx.x < kWarps && parts[threadIdx.x].ends == 0)) return;
  // A thread has the first end of a warp; one more thread has the items after the tile's last end.
  State state = threadIdx.x < kWarps ? parts[threadIdx.x].opening : op.identity();
  for (int before = static_cast<int>(threadIdx.x) - 1; before >= 0; --before) {
    state = op.combine(parts[before].open, state);
    if (parts[before].ends > 0) break;
  }
  if (threadIdx.x == kWarps) {
    reduction.open[tile] = {state, units.ends > 0};
    if (units.ends == 0) reduction.opening[tile] = state;  // unused, but read
  } else if (parts[threadIdx.x].first == 0) {
    reduction.opening[tile] = state;
  } else {
    store_segment(reduction, op, units.first_end + parts[threadIdx.x].first, state);
  }
}

// Writes the places of the tile's ends to memory.bounds, and marks them in memory.closes.
template <typename Operator>
__device__ __forceinline__ TileEnds mark_ends(const SegmentedReduction<Operator>& reduction, const TileUnits& units,
                                              const TilePlaces& places, const TileMemory<Operator>& memory) {
  const SegmentEnds& ends = reduction.tiles.ends;
  const Segments& segments = ends.segments;
  int64_t row = 0, row_begin = 0, row_entries = -1, first_in_row = units.first_end;
  IndexVector heads = segments.heads;
  if (segments.rows > 1) {
    row = ends.row(units.first_end);
    row_begin = row * segments.length;
    row_entries += row * segments.heads_count;
    first_in_row -= row * ends.per_row();
    heads = heads.from(row * segments.heads_stride);
  }
  const int64_t base = maximum<int64_t>(units.first_item - row_begin, 0);  // the first item, in the row
  const int live = static_cast<int>(clamp<int64_t>(segments.live(row) - base, 0, units.items));
  const int own_heads = static_cast<int>(clamp<int64_t>(segments.heads_count - first_in_row, -1, units.ends));
  const auto put_end = [&](int i, int place) {
    memory.bounds[-i] = place;
    if (place > 0) memory.closes[place - 1] = 1;
  };
  __syncthreads();
  const auto put_heads = [&](auto* head) {
    using Head = std::remove_cvref_t<decltype(*head)>;
    constexpr int kInFlight = 4;
    head += first_in_row;
    const Head first = static_cast<Head>(minimum<int64_t>(base, std::numeric_limits<Head>::max()));
#pragma unroll 1
    for (int begin = threadIdx.x; begin < own_heads; begin += kInFlight * kThreads) {
      Head positions[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (begin + k * kThreads < own_heads) positions[k] = head[begin + k * kThreads];
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (begin + k * kThreads >= own_heads) continue;
        const Head offset = clamp<Head>(maximum<Head>(positions[k], 0) - first, 0, live);
        put_end(begin + k * kThreads, places.lead + static_cast<int>(offset));
      }
    }
  };
  if (units.items > 0) {  // without items, all parts of segments are empty
    if (heads.wide) {
      put_heads(static_cast<const int64_t*>(heads.data));
    } else {
      put_heads(static_cast<const int32_t*>(heads.data));
    }
#pragma unroll 1
    for (int i = maximum(own_heads, 0) + threadIdx.x; i < units.ends; i += kThreads) {
      const int64_t place = clamp<int64_t>(ends[units.first_end + i] - places.origin, places.lead, places.limit);
      put_end(i, static_cast<int>(place));
    }
    if (threadIdx.x == 0) put_end(units.ends, places.limit);  // the end of the open segment
  }
  __syncthreads();
  return {row_begin, row_entries + first_in_row, own_heads};
}

// A row of places without ends needs only its sum.
template <typename Operator>
__device__ __forceinline__ void sum_runs(const Operator& op, const TilePlaces& places,
                                         const RowVectors<Operator>& vectors, const TileMemory<Operator>& memory) {
  using State = typename Operator::State;
  using Shape = Shape<Operator>;
  constexpr int kRun = Shape::kRun;
  const int lane = threadIdx.x % kWarp;
  const int first_row = threadIdx.x / kWarp * Shape::kRows;
#pragma unroll
  for (int row = 0; row < Shape::kRows; ++row) {
    const int place = place_of<Operator>(row);
    const int row_place = (first_row + row) * Shape::kRowPlaces;
    if (row_place >= places.limit) break;
    State states[kRun];
    extract_run(op, places, row, vectors, states);
    const auto closing = reinterpret_cast<const Marks<kRun>*>(memory.closes)[place / kRun];
    const unsigned closing_lanes = __ballot_sync(0xffffffffu, closing.any());
    State sum;
    if (closing_lanes == 0) {
      sum = states[0];
#pragma unroll
      for (int k = 1; k < kRun; ++k) sum = op.combine(sum, states[k]);
      sum = fold_warp(sum, [&](const State& a, const State& b) { return op.combine(a, b); });
    } else {
#pragma unroll
      for (int k = 1; k < kRun; ++k) {
        const State both = op.combine(states[k - 1], states[k]);
        states[k] = closing[k - 1] ? states[k] : both;
      }
      const auto in_row = scan_warp<true>(op, closing[kRun - 1] ? op.identity() : states[kRun - 1], closing_lanes);
      if (place < places.limit) {
        store_vector(memory.sums, place, states);
        memory.before_run[place / kRun] = in_row.before.state;
      }
      sum = in_row.all.state;
    }
    if (lane == 0) memory.row_sums[first_row + row] = sum;
  }
  __syncthreads();
}

template <typename Operator>
__device__ __forceinline__ void store_segments(const SegmentedReduction<Operator>& reduction, const Operator& op,
                                               const TileUnits& units, const TileEnds& tile_ends,
                                               const TileMemory<Operator>& memory) {
  using State = typename Operator::State;
  using Shape = Shape<Operator>;
  constexpr int kRun = Shape::kRun;
  const SegmentEnds& ends = reduction.tiles.ends;
  const auto segment = [&](int i) {
    if (units.items == 0) return op.identity();
    const unsigned end = memory.bounds[-i];
    const unsigned begin = i == 0 ? 0 : memory.bounds[1 - i];
    State state = op.identity();
    if (end > begin) {
      const unsigned last = end - 1;
      state = memory.sums[last];
      if (begin / kRun < last / kRun) {
        state = op.combine(memory.before_run[last / kRun], state);
#pragma unroll 1
        for (unsigned r = last / Shape::kRowPlaces; r > begin / Shape::kRowPlaces; --r) {
          state = op.combine(memory.row_sums[r - 1], state);
        }
      }
    }
    return state;
  };
  const int own_segments = clamp(tile_ends.own_heads + 1, 1, maximum(units.ends, 1));
#pragma unroll 4
  for (int i = 1 + threadIdx.x; i < own_segments; i += kThreads) {
    reduction.result.store(tile_ends.first_entry + i, op.finish(segment(i), tile_ends.row_begin));
  }
  // The last two states are those of the open segment and of the first end's segment.
#pragma unroll 1
  for (int k = own_segments + threadIdx.x; k <= units.ends + 1; k += kThreads) {
    const int i = k <= units.ends ? k : 0;
    const State state = segment(i);
    if (i == units.ends) {
      reduction.open[blockIdx.x] = {state, units.ends > 0};
    } else if (i == 0) {
      reduction.opening[blockIdx.x] = state;
    } else {
      const int64_t entry = ends.entry(units.first_end + i);
      if (entry < 0) continue;
      reduction.result.store(entry, op.finish(state, ends.row(units.first_end + i) * ends.segments.length));
    }
  }
}

template <typename Operator>
__global__ void __launch_bounds__(kThreads, sizeof(typename Operator::State) > 8 ? 4 : 8)
    reduce_tiles(SegmentedReduction<Operator> reduction, Operator op) {
  using State = typename Operator::State;
  using Shape = Shape<Operator>;
  constexpr int kPlaces = Shape::kPlaces;
  constexpr int kSumBytes = kPlaces * maximum<int>(sizeof(State), sizeof(int));  // one state or one end per place
  __shared__ alignas(16) char sums[kSumBytes];
  __shared__ State before_run[kPlaces / Shape::kRun];
  __shared__ State row_sums[kPlaces / Shape::kRowPlaces];
  __shared__ alignas(16) uint8_t closes[kPlaces];
  const TileMemory<Operator> memory{reinterpret_cast<State*>(sums), before_run, row_sums, closes,
                                    reinterpret_cast<int*>(sums + kSumBytes) - 1};
#pragma unroll
  for (int i = threadIdx.x; i < kPlaces / 16; i += kThreads) reinterpret_cast<uint4*>(closes)[i] = uint4{};
  wait_for_last_kernel();
  const TileUnits units = reduction.tiles[blockIdx.x];
  const int lead = static_cast<int>(units.first_item % Shape::kVector);
  const TilePlaces places{units.first_item - lead, lead, lead + units.items};
  RowVectors<Operator> vectors;
  load_items(reduction, places, vectors);
  if (units.ends <= kMaxUnmarkedEnds) {
    __shared__ WarpParts<State> parts[kThreads / kWarp];
    reduce_rows_to_ends(reduction, op, units, places, LoadedRuns<Operator>{op, places, vectors}, parts);
    join_warps(reduction, op, blockIdx.x, units, parts);
    return;
  }
  const TileEnds ends = mark_ends(reduction, units, places, memory);
  sum_runs(op, places, vectors, memory);
  store_segments(reduction, op, units, ends, memory);
}

// One thread per tile. The segment that the tile's first end closes may have begun in the last earlier tile that has an
// end. The thread combines the states that the earlier tile and those in between left open with its own tile's part.
template <typename Operator>
__global__ void __launch_bounds__(kJoinThreads) join_tiles(SegmentedReduction<Operator> reduction, Operator op) {
  using Sums = Sums<Operator, true>;
  using Sum = typename Sums::Value;
  __shared__ Sum warp_sums[kJoinThreads / kWarp];
  const Sums sums{op};
  const auto open_of = [&](int64_t tile) {
    return tile >= 0 && tile < reduction.tiles.tiles ? reduction.open[tile] : sums.identity();
  };
  const auto scan_block = [&](const Sum& sum) {
    const auto in_warp = scan_warp<true>(op, sum.state, __ballot_sync(0xffffffffu, sum.restarted != 0));
    auto in_block = scan_warps<kJoinThreads / kWarp>(warp_sums, in_warp.all, sums.identity(), sums);
    in_block.before = sums(in_block.before, in_warp.before);
    return in_block;
  };

  wait_for_last_kernel();
  const int64_t block_tile = int64_t{blockIdx.x} * kJoinThreads;
  const int64_t tile = block_tile + threadIdx.x;
  // Loads everything at once, needed or not.
  const Sum own = open_of(tile);
  Sum before_block = open_of(block_tile - 1);
  typename Operator::State opening = op.identity();
  int64_t end = 0;
  if (tile < reduction.tiles.tiles) {
    opening = reduction.opening[tile];
    end = reduction.tiles.first_end(tile);
  }
  const auto in_block = scan_block(own);
  if (!in_block.all.restarted) return;
  constexpr int kStep = kJoinThreads * kJoinTiles;
  for (int64_t last = block_tile - 1; last > 0 && !before_block.restarted; last -= kStep) {
    Sum sum = sums.identity();
#pragma unroll
    for (int i = 0; i < kJoinTiles; ++i) {
      sum = sums(sum, open_of(last - kStep + static_cast<int>(threadIdx.x) * kJoinTiles + i));
    }
    __syncthreads();
    before_block = sums(scan_block(sum).all, before_block);
  }
  // Heads out of order may give a tile's first end an impossible number.
  if (!own.restarted || end < 0 || end >= reduction.tiles.total_ends) return;
  const SegmentEnds& ends = reduction.tiles.ends;
  const int64_t entry = ends.entry(end);
  if (entry < 0) return;
  const Sum before = sums(before_block, in_block.before);
  reduction.result.store(entry, op.finish(op.combine(before.state, opening), ends.row(end) * ends.segments.length));
}

}  // namespace mgpu::cuda::segment_reducing
