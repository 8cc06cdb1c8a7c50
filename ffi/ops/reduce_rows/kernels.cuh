// The items of segments are rows of x, in the order of memory or by index, multiplied by weights if there are
// any. The workers of blocks (plan.h) consume tiles of items and segment ends (unit_tiles.cuh). The block joins
// the states of its workers' first and last segments, and a second kernel (join_tiles.cuh) joins those of
// tiles.
#pragma once

#include "ops/reduce_rows/reduction.cuh"

namespace mgpu::cuda::row_reducing {

// The weights of a lane's columns, which may be in different groups.
template <int kVector, typename Operator>
struct LaneWeights {
  using Element = typename Operator::Element;
  using Loaded = Neighbours<Element, kVector>;
  int groups[kVector];

  __device__ __forceinline__ LaneWeights(const RowReduction<Operator>& reduction, const LaneColumns& columns) {
    const int64_t group_columns = reduction.sources.width / reduction.groups;
    int group = static_cast<int>(columns.first / group_columns);
    int64_t left = (group + 1) * group_columns - columns.first;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      groups[k] = minimum(group, reduction.groups - 1);
      if (--left == 0) {
        ++group;
        left = group_columns;
      }
    }
  }
  __device__ __forceinline__ Loaded load(const Element* of_item) const {
    Element weights[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (k > 0 && groups[k] == groups[k - 1]) {
        weights[k] = weights[k - 1];
      } else {
        weights[k] = of_item[groups[k]];
      }
    }
    return Loaded::pack(weights);
  }
};

// A lane's way through its worker's share of a tile: the states of the current segment.
template <int kVector, typename Operator>
struct Walk {
  using State = typename Operator::State;
  const RowReduction<Operator>& reduction;
  const Operator& op;
  const LaneColumns columns;
  const uint32_t* ends;  // for each end of the tile: the items before it and, in the upper bits, its result
  State* opening;        // in shared memory, a place for each thread: the states of the first segment that is closed
  int64_t first_result;  // the lane's first element of the result from which `ends` counts results
  int first_end;
  int last_end;
  int end;
  int next;  // the row before which the next end lies
  State states[kVector];

  __device__ __forceinline__ Walk(const RowReduction<Operator>& reduction, const Operator& op,
                                  const LaneColumns& columns, const uint32_t* ends, State* opening, int64_t first_entry,
                                  int first_end, int last_end)
      : reduction(reduction),
        op(op),
        columns(columns),
        ends(ends),
        opening(opening + threadIdx.x * kVector),
        first_result(first_entry * reduction.sources.width + columns.first),
        first_end(first_end),
        last_end(last_end),
        end(first_end) {
    reset();
    find_next();
  }

  __device__ __forceinline__ bool has_closed() const { return first_end < last_end; }
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int k = 0; k < kVector; ++k) states[k] = op.identity();
  }
  __device__ __forceinline__ void find_next() {
    next = end < last_end ? static_cast<int>(ends[end] & 0xffff) : 1 << 30;
  }
  __device__ __forceinline__ void store(int of_end, const State (&closed_states)[kVector]) {
    const uint32_t entry = ends[of_end] >> 16;
    if (entry == kNoEntry) return;
    store_result<kVector>(reduction, op, first_result + entry * reduction.sources.width, columns, closed_states);
  }
  __device__ __forceinline__ void close() {
    if (end == first_end) {
      store_bytes<sizeof(states)>(opening, states);
    } else {
      store(end, states);
    }
    reset();
    ++end;
    find_next();
  }
  __device__ __forceinline__ void close_before(int row) {
    while (next <= row) close();
  }
  __device__ __forceinline__ void close_all() {
    while (end < last_end) close();
  }
};

template <typename Operator>
__device__ __forceinline__ TileUnits find_tile(const RowReduction<Operator>& reduction, int64_t tile) {
  return reduction.finds_tiles ? reduction.tiles.find(tile) : reduction.tiles[tile];
}

// The problems of a batch to which consecutive units of a tile belong.
struct TileProblems {
  int64_t first;    // of the first unit
  int to_next;      // units of the tile before the next problem
  unsigned length;  // the length of a problem, or a number above the units of a tile

  __device__ __forceinline__ TileProblems(int64_t unit, int64_t problems, int64_t problem_length)
      : first(problems == 1 ? 0 : unit / problem_length),
        to_next(static_cast<int>(minimum<int64_t>((first + 1) * problem_length - unit, kMostUnits))),
        length(static_cast<unsigned>(minimum<int64_t>(problem_length, kMostUnits))) {}
  // How many problems after the first one unit i of the tile lies.
  __device__ __forceinline__ int after_first(int i) const {
    return i < to_next ? 0 : 1 + static_cast<int>(static_cast<unsigned>(i - to_next) / length);
  }

 private:
  static constexpr int kMostUnits = 1 << 16;
};

// Fills `ends` (Walk::ends), and sets end_before to the position of the end before
// the tile's first one. Returns the result from which `ends` counts results.
template <typename Operator>
__device__ __forceinline__ int64_t list_ends(const RowReduction<Operator>& reduction, const TileUnits& tile,
                                             int64_t& end_before, uint32_t* ends) {
  const Segments& segments = reduction.tiles.ends.segments;
  const TileProblems problems(tile.first_end, segments.rows, reduction.tiles.ends.per_row());
  const int64_t first_live = problems.first < segments.rows ? segments.live(problems.first) : 0;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) - 1; i < tile.ends; i += kThreads) {
    const int after = problems.after_first(i);
    const int64_t row = problems.first + after, place = tile.first_end + i - row * reduction.tiles.ends.per_row();
    const int64_t live = after == 0 ? first_live : segments.live(row);
    int64_t position = segments.length;
    if (place <= segments.heads_count) {
      position = place >= 0 && place < segments.heads_count ? minimum(segments.row_head(row, place), live) : live;
    }
    if (i < 0) {
      end_before = row * segments.length + position;
      continue;
    }
    const int64_t items = clamp<int64_t>(row * segments.length + position - tile.first_item, 0, tile.items);
    const bool has_entry = place > 0 && place <= segments.heads_count;
    ends[i] = static_cast<uint32_t>(items) | (has_entry ? static_cast<uint32_t>(i - 2 * after) : kNoEntry) << 16;
  }
  return tile.first_end - 2 * problems.first - 1;
}

// Stores which tiles may have parts of the segment that the tile's first
// end closes. The last end before the tile is at position `end_before`.
template <typename Operator>
__device__ __forceinline__ void note_split(const RowReduction<Operator>& reduction, const TileUnits& tile,
                                           int64_t index, int64_t end_before) {
  const bool is_split = tile.ends > 0 && tile.first_end > 0 && reduction.tiles.ends.entry(tile.first_end) >= 0;
  reduction.split[index] = {is_split ? tile.first_end : -1, reduction.tiles.tile_of(end_before + tile.first_end - 1)};
}

// Finds the first of the tile's ends in each worker's share, and one past the last share. Ends with a barrier.
__device__ __forceinline__ void share_ends(const TileUnits& tile, const uint32_t* ends, int workers, int worker_units,
                                           int* worker_ends) {
  for (int i = threadIdx.x; i <= workers; i += kThreads) {
    const int diagonal = minimum(i * worker_units, tile.size);
    worker_ends[i] = partition_point(maximum(0, diagonal - tile.items), minimum(diagonal, tile.ends),
                                     [&](int j) { return static_cast<int>(ends[j] & 0xffff) + j < diagonal; });
  }
  __syncthreads();
}

// Joins the states that workers leave open: over the lanes of each warp, then over the warps.
// Then stores what each worker's first end closes, and what the tile leaves for its neighbours.
template <int kMostLanes, int kVector, typename Operator>
__device__ __forceinline__ void join_workers(Walk<kVector, Operator>& walk, int lanes, int64_t tile) {
  using State = typename Operator::State;
  __shared__ State warp_states[kWarps][kMostLanes * kVector];
  __shared__ bool warp_ended[kWarps];
  const Operator& op = walk.op;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  bool ended = walk.has_closed();
  for (int distance = lanes; distance < kWarp; distance *= 2) {
    const bool before_ended = __shfl_up_sync(~0u, ended, distance);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const State before = shuffle_up(walk.states[k], distance);
      if (lane >= distance && !ended) walk.states[k] = op.combine(before, walk.states[k]);
    }
    if (lane >= distance) ended = ended || before_ended;
  }
  State before[kVector];
  bool before_ended = __shfl_up_sync(~0u, ended, lanes);
#pragma unroll
  for (int k = 0; k < kVector; ++k) before[k] = shuffle_up(walk.states[k], lanes);
  if (lane < lanes) {
    before_ended = false;
#pragma unroll
    for (int k = 0; k < kVector; ++k) before[k] = op.identity();
  }
  const int last_lane = lane - (kWarp - lanes);  // the lane within the warp's last worker
  State* const mine = &warp_states[0][(lane & (lanes - 1)) * kVector];
  if (last_lane >= 0) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) mine[warp * kMostLanes * kVector + k] = walk.states[k];
    if (last_lane == 0) warp_ended[warp] = ended;
  }
  __syncthreads();
  if (walk.columns.count <= 0) return;
  const auto add_warps = [&](State(&states)[kVector], bool& has_ended) {
    for (int w = warp - 1; w >= 0 && !has_ended; --w) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) states[k] = op.combine(mine[w * kMostLanes * kVector + k], states[k]);
      has_ended = warp_ended[w];
    }
  };
  const RowReduction<Operator>& reduction = walk.reduction;
  const int64_t place = tile * reduction.sources.width + walk.columns.first;
  if (walk.has_closed()) {
    add_warps(before, before_ended);
#pragma unroll
    for (int k = 0; k < kVector; ++k) before[k] = op.combine(before[k], walk.opening[k]);
    if (before_ended) {
      walk.store(walk.first_end, before);
    } else {
      store_columns(reduction.opening + place, before, walk.columns);
    }
  }
  if (warp == kWarps - 1 && last_lane >= 0) {
    add_warps(walk.states, ended);
    store_columns(reduction.open + place, walk.states, walk.columns);
  }
}

// Loads data that the cache need not keep.
template <typename Item>
__device__ __forceinline__ Item load_once(const Item* from) {
  using Word = typename Neighbours<Item, 1>::Word;
  return std::bit_cast<Item>(__ldcs(reinterpret_cast<const Word*>(from)));
}

// How the items of a tile find their rows of x. `from(i)[k]` is the index of item i + k,
// `holds` says whether there is a row of an index, and `row` computes the row's number from
// it.
struct NeighbourRows {
  int64_t first;
  struct Indices {
    int first;
    __device__ __forceinline__ int operator[](int i) const { return first + i; }
  };
  __device__ __forceinline__ Indices from(int i) const { return {i}; }
  __device__ __forceinline__ bool holds(int) const { return true; }
  __device__ __forceinline__ int64_t row(int i, int) const { return first + i; }
};

template <typename Index>
struct ListedRows {
  using Unsigned = std::make_unsigned_t<Index>;
  const RowSources& sources;
  const Index* indices;
  Unsigned limit;  // indices below it have rows
  TileProblems problems;

  __device__ __forceinline__ ListedRows(const RowSources& sources, int64_t first_item)
      : sources(sources),
        indices(static_cast<const Index*>(sources.indices.data) + first_item),
        limit(static_cast<Unsigned>(minimum<uint64_t>(sources.count, uint64_t{1} << (8 * sizeof(Index) - 1)))),
        problems(first_item, sources.problems, sources.length) {}

  struct Indices {
    const Index* first;
    __device__ __forceinline__ Index operator[](int i) const { return load_once(first + i); }
  };
  __device__ __forceinline__ Indices from(int i) const {
    const Index* first = indices + i;
    keep(first);  // else, each load has an address of its own
    return {first};
  }
  __device__ __forceinline__ bool holds(Index index) const { return static_cast<Unsigned>(index) < limit; }
  __device__ __forceinline__ int64_t row(int i, Index index) const {
    return sources.problems == 1 ? index : (problems.first + problems.after_first(i)) * sources.count + index;
  }
};

template <typename Visit>
__device__ __forceinline__ void with_rows(const RowSources& sources, int64_t first_item, Visit visit) {
  if (!sources.indices.data) return visit(NeighbourRows{first_item});
  if (sources.indices.wide) return visit(ListedRows<int64_t>(sources, first_item));
  visit(ListedRows<int32_t>(sources, first_item));
}

// `rows` has the numbers of rows, which count from the first item if rows are not gathered. `high` has the high words
// of these numbers, or is null if they have none. `weights` has the weights, if each item has one.
template <typename State>
struct TileLists {
  uint32_t* rows;
  uint32_t* high;
  State* weights;

  __device__ __forceinline__ int64_t row(int i) const {
    if (high) return static_cast<int64_t>(uint64_t{high[i]} << 32 | rows[i]);
    return rows[i] == kNoRow ? RowSources::kNone : rows[i];
  }
};

// Combines the rows [row, last_row) of a tile in a lane's columns. With kPlain, rows are plain
// (RowReduction::is_plain).
template <Weights kWeights, bool kPlain, int kVector, typename Operator>
__device__ __forceinline__ void walk_rows(Walk<kVector, Operator>& walk, int64_t first_item,
                                          const TileLists<typename Operator::State>& lists, int row, int last_row) {
  using Element = typename Operator::Element;
  using State = typename Operator::State;
  using Row = Neighbours<Element, kVector>;
  constexpr int kRows = kRowsInFlight<kWeights, Operator>;
  const RowReduction<Operator>& reduction = walk.reduction;
  const Operator& op = walk.op;
  const int64_t width = reduction.sources.width, base = reduction.sources.indices.data ? 0 : first_item;
  const Element* const x = reduction.x + base * width + walk.columns.first;
  auto row_bytes = static_cast<uint32_t>(width * static_cast<int64_t>(sizeof(Element)));
  keep(row_bytes);  // else, the compiler multiplies by 64 bits
  const LaneWeights<kVector, Operator> lane_weights(reduction, walk.columns);
#pragma unroll 1
  for (; row < last_row; row += kRows) {
    bool exists[kRows];
    Row items[kRows], weights[kRows];
    if constexpr (kPlain) {
      uint32_t rows[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) rows[i] = lists.rows[row + i];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        exists[i] = row + i < last_row && rows[i] != kNoRow;
        const char* const from = reinterpret_cast<const char*>(x) + uint64_t{rows[i]} * row_bytes;
        if (exists[i]) items[i] = Row::load(reinterpret_cast<const Element*>(from));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t from = row + i < last_row ? lists.row(row + i) : RowSources::kNone;
        exists[i] = from != RowSources::kNone;
        if (exists[i]) items[i] = Row::load(x + from * width, walk.columns.count, walk.columns.part);
      }
    }
    if constexpr (kWeights == Weights::kGroups) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (exists[i]) weights[i] = lane_weights.load(reduction.weights + (first_item + row + i) * reduction.groups);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      walk.close_before(row + i);  // after the last row, there are only ends
      if (!exists[i]) continue;
      Element elements[kVector], factors[kVector];
      items[i].unpack(elements);
      State factor{};
      if constexpr (kWeights == Weights::kGroups) weights[i].unpack(factors);
      if constexpr (kWeights == Weights::kOne) factor = lists.weights[row + i];
      const int64_t position = Operator::kGivesIndex ? base + lists.row(row + i) : 0;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if constexpr (kWeights == Weights::kNone) {
          walk.states[k] = op.combine(walk.states[k], op.extract(elements[k], position));
        } else {
          if constexpr (kWeights == Weights::kGroups) factor = op.extract(factors[k], 0);
          walk.states[k] += op.extract(elements[k], 0) * factor;
        }
      }
    }
  }
}

template <Weights kWeights, typename Operator>
__device__ __forceinline__ void list_rows(const RowReduction<Operator>& reduction, const Operator& op,
                                          const TileUnits& tile, const TileLists<typename Operator::State>& lists) {
  using Element = typename Operator::Element;
  [[maybe_unused]] const Element* const weights_of = reduction.weights + tile.first_item;
  const auto list = [&](const auto& rows) {
    using Index = decltype(rows.from(0)[0]);
    constexpr int kAtOnce = 32 / sizeof(Index);
#pragma unroll 1
    for (int first = threadIdx.x; first < tile.items; first += kAtOnce * kThreads) {
      // Loads come first, as the compiler
      // does not move a load over a store.
      Index indices[kAtOnce];
      [[maybe_unused]] Element weights[kAtOnce];
      const auto from = rows.from(first);
      [[maybe_unused]] const Element* weights_from = weights_of + first;
      if constexpr (kWeights == Weights::kOne) keep(weights_from);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k * kThreads >= tile.items) continue;
        indices[k] = from[k * kThreads];
        if constexpr (kWeights == Weights::kOne) weights[k] = load_once(weights_from + k * kThreads);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = first + k * kThreads;
        if (i >= tile.items) break;
        const int64_t row = rows.holds(indices[k]) ? rows.row(i, indices[k]) : RowSources::kNone;
        lists.rows[i] = static_cast<uint32_t>(row);
        if (lists.high) lists.high[i] = static_cast<uint32_t>(row >> 32);
        if constexpr (kWeights == Weights::kOne) lists.weights[i] = op.extract(weights[k], 0);
      }
    }
  };
  if (reduction.sources.indices.data) {
    with_rows(reduction.sources, tile.first_item, list);
  } else {
    list(NeighbourRows{0});
  }
}

// Reduces tiles of rows. All tiles of a slice of columns
// come before those of the next.
template <Weights kWeights, typename Operator>
__global__ void __launch_bounds__(kThreads, kReduceRowsBlocks)
    reduce_tiles(RowReduction<Operator> reduction, Operator op) {
  using State = typename Operator::State;
  constexpr int kVector = kVectorOf<Operator>;
  extern __shared__ uint4 shared[];
  __shared__ int worker_ends[kThreads + 1];
  __shared__ int64_t end_before;
  __shared__ alignas(16) State opening[kVector * kThreads];
  const auto slice = static_cast<int64_t>(blockIdx.x / static_cast<unsigned>(reduction.tiles.tiles));
  const int64_t tile_index = blockIdx.x % static_cast<unsigned>(reduction.tiles.tiles);
  wait_for_last_kernel();
  start_next_kernel();
  const TileUnits tile = find_tile(reduction, tile_index);
  // Ends lie at the beginning of the slots, and rows at their end.
  State* const weights = reinterpret_cast<State*>(shared);
  uint32_t* const ends =
      reinterpret_cast<uint32_t*>(weights + (kWeights == Weights::kOne ? reduction.unit_slots() : 0));
  uint32_t* const rows = ends + reduction.tiles.units - tile.items;
  const TileLists<State> lists{rows, reduction.long_rows ? rows + reduction.unit_slots() : nullptr, weights};
  const int64_t first_entry = list_ends(reduction, tile, end_before, ends);
  list_rows<kWeights>(reduction, op, tile, lists);
  __syncthreads();
  share_ends(tile, ends, kThreads >> reduction.lane_bits, reduction.worker_units, worker_ends);

  const int lanes = 1 << reduction.lane_bits;
  const int worker = static_cast<int>(threadIdx.x) >> reduction.lane_bits;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t column = (slice * lanes + lane) * kVector;
  const int columns = static_cast<int>(clamp<int64_t>(reduction.sources.width - column, 0, kVector));
  const int end = worker_ends[worker], last_end = worker_ends[worker + 1];
  Walk<kVector, Operator> walk(reduction, op, {column, columns, reduction.part}, ends, opening, first_entry, end,
                               last_end);
  if (columns > 0) {
    const int row = minimum(worker * reduction.worker_units, tile.size) - end;
    const int last_row = minimum((worker + 1) * reduction.worker_units, tile.size) - last_end;
    if (reduction.is_plain) {
      walk_rows<kWeights, true>(walk, tile.first_item, lists, row, last_row);
    } else {
      walk_rows<kWeights, false>(walk, tile.first_item, lists, row, last_row);
    }
    walk.close_all();
  }
  if (slice == 0 && threadIdx.x == 0) note_split(reduction, tile, tile_index, end_before);
  join_workers<kReduceRowsMostLanes>(walk, lanes, tile_index);
}

// Rows of up to kStates columns become states in shared memory. A dropped item becomes the identity.
template <Weights kWeights, int kStates, typename Operator, typename Rows>
__device__ __forceinline__ void stage_rows(const RowReduction<Operator>& reduction, const Operator& op,
                                           const TileUnits& tile, const LaneColumns& columns, const Rows& rows,
                                           typename Operator::State* staged) {
  using Element = typename Operator::Element;
  using State = typename Operator::State;
  using Row = Neighbours<Element, kStates>;
  constexpr bool kGroups = kWeights == Weights::kGroups;
  using Index = decltype(rows.from(0)[0]);
  constexpr int kRows = kGroups || sizeof(Row) == 16 ? 2 : 4;
  const int64_t width = kStates == 1 ? 1 : reduction.sources.width;
  const LaneWeights<kStates, Operator> lane_weights(reduction, columns);
  const Element* const weights_of = reduction.weights + tile.first_item * reduction.groups;
#pragma unroll 1
  for (int first = threadIdx.x; first < tile.items; first += kRows * kThreads) {
    Row items[kRows], group_weights[kRows];
    Element weights[kRows];
    Index indices[kRows];  // -1 if the item is dropped
    const auto from = rows.from(first);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int item = first + i * kThreads;
      indices[i] = -1;
      if (item >= tile.items) continue;
      const Index index = from[i * kThreads];
      indices[i] = rows.holds(index) ? index : Index{-1};
      if constexpr (kGroups) {
        group_weights[i] = lane_weights.load(weights_of + item * int64_t{reduction.groups});
      } else if constexpr (kWeights == Weights::kOne) {
        weights[i] = load_once(weights_of + item);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (indices[i] < 0) continue;
      const Element* const from = reduction.x + rows.row(first + i * kThreads, indices[i]) * width;
      items[i] = Row::load(from, columns.count, columns.part);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int item = first + i * kThreads;
      if (item >= tile.items) break;
      State states[kStates];
#pragma unroll
      for (State& state : states) state = op.identity();
      if (indices[i] >= 0) {
        const int64_t position = Operator::kGivesIndex ? rows.row(item, indices[i]) : 0;
        Element elements[kStates], factors[kStates];
        items[i].unpack(elements);
        if constexpr (kGroups) group_weights[i].unpack(factors);
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
          states[k] = op.extract(elements[k], position);
          if constexpr (kWeights != Weights::kNone) states[k] *= op.extract(kGroups ? factors[k] : weights[i], 0);
        }
      }
      Neighbours<State, kStates>::pack(states).store(staged + item * kStates);
    }
  }
}

// All threads together bring rows of up to kStates columns to
// shared memory. Then each thread takes one row after the other.
template <Weights kWeights, int kStates, typename Operator>
__global__ void __launch_bounds__(kThreads, kReduceRowsStagedBlocks)
    reduce_short_rows(RowReduction<Operator> reduction, Operator op) {
  using State = typename Operator::State;
  extern __shared__ uint4 shared[];
  __shared__ int worker_ends[kThreads + 1];
  __shared__ int64_t end_before;
  __shared__ alignas(16) State opening[kStates * kThreads];
  const LaneColumns columns{0, static_cast<int>(reduction.sources.width), reduction.part};
  wait_for_last_kernel();
  start_next_kernel();
  const TileUnits tile = find_tile(reduction, blockIdx.x);
  // Ends lie at the beginning of the slots of units, and rows at their end.
  uint32_t* const ends = reinterpret_cast<uint32_t*>(shared);
  State* const staged = reinterpret_cast<State*>(shared) + (reduction.tiles.units - tile.items) * kStates;
  const int64_t first_entry = list_ends(reduction, tile, end_before, ends);
  with_rows(reduction.sources, tile.first_item,
            [&](const auto& rows) { stage_rows<kWeights, kStates>(reduction, op, tile, columns, rows, staged); });
  __syncthreads();
  share_ends(tile, ends, kThreads, reduction.worker_units, worker_ends);

  const int worker = static_cast<int>(threadIdx.x);
  const int end = worker_ends[worker], last_end = worker_ends[worker + 1];
  const int last_row = minimum((worker + 1) * reduction.worker_units, tile.size) - last_end;
  Walk<kStates, Operator> walk(reduction, op, columns, ends, opening, first_entry, end, last_end);
#pragma unroll 1
  for (int row = minimum(worker * reduction.worker_units, tile.size) - end; row < last_row; ++row) {
    walk.close_before(row);
    State states[kStates];
    Neighbours<State, kStates>::load(staged + row * kStates).unpack(states);
#pragma unroll
    for (int k = 0; k < kStates; ++k) walk.states[k] = op.combine(walk.states[k], states[k]);
  }
  walk.close_all();
  if (threadIdx.x == 0) note_split(reduction, tile, blockIdx.x, end_before);
  join_workers<1>(walk, 1, blockIdx.x);
}

}  // namespace mgpu::cuda::row_reducing
