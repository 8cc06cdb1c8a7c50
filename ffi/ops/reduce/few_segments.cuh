// segmented_reduce of few segments: tiles are of as many items each, which a block asks for before it knows what ends
// lie among them.
#pragma once

#include "ops/reduce/segmented_reduce.cuh"

namespace mgpu::cuda::segment_reducing {

// A tile of items has the ends behind each of them, the first one also those before all. Every kMostEnds-th of all ends
// begins a further tile, so that none has more, however close together they lie.
struct ItemTiles {
  static constexpr int kMostEnds = SegmentTiling::kMostTileEnds;
  static_assert(kMostEnds < kWarp);  // a lane has one, and another none

  SegmentEnds ends;
  int64_t total_items;
  int total_ends;
  int item_tiles;
  int items_log2;        // in a tile
  int* ends_before;      // [item_tiles + 1], before each tile of items
  uint16_t* end_places;  // [total_ends], in the tile of items that the end is in
  int* further_in;       // [further_tiles()], the tile of items in which each begins

  __device__ __forceinline__ int further_tiles() const { return total_ends / kMostEnds; }
};

// A thread an end, as place_tiles_by_ends.
static __global__ void __launch_bounds__(kPartitionThreads) partition_items(ItemTiles tiles) {
  start_next_kernel();
  const int end = static_cast<int>(blockIdx.x * kPartitionThreads + threadIdx.x);
  const auto place_of = [&](int j) { return clamp<int64_t>(tiles.ends[j], 0, tiles.total_items); };
  const auto tile_of = [&](int64_t place) {
    return static_cast<int>(maximum<int64_t>(place - 1, 0) >> tiles.items_log2);
  };
  int tile = 0, limit = 0;
  if (end <= tiles.total_ends) {
    tile = end > 0 ? tile_of(place_of(end - 1)) + 1 : 0;
    limit = tiles.item_tiles + 1;
    if (end < tiles.total_ends) {
      const int64_t place = place_of(end);
      const int own = tile_of(place);
      limit = own + 1;
      tiles.end_places[end] = static_cast<uint16_t>(place - (int64_t{own} << tiles.items_log2));
      if ((end + 1) % ItemTiles::kMostEnds == 0) tiles.further_in[end / ItemTiles::kMostEnds] = own;
    }
  }
  put_ranges<8>(tile, limit, end, [&](int64_t t, int64_t j) { tiles.ends_before[t] = static_cast<int>(j); });
}

// A tile that begins with the items of tile `item_tile`, or at an end among them.
struct ItemTile {
  int item_tile;
  int further_before;  // of the further tiles, this one too
  int first_end;
  int ends;
  int begin, limit;  // places among the items of item_tile

  template <int kItems>
  __device__ __forceinline__ static ItemTile find(const ItemTiles& tiles, int item_tile) {
    constexpr int kMostEnds = ItemTiles::kMostEnds;
    ItemTile tile{item_tile, static_cast<int>(blockIdx.x) + 1, 0, 0, 0, 0};
    if (item_tile < 0) {
      tile.item_tile = tiles.further_in[blockIdx.x];
      tile.first_end = tile.further_before * kMostEnds;
      tile.begin = tiles.end_places[tile.first_end - 1];
    } else {
      tile.first_end = tiles.ends_before[item_tile];
      tile.further_before = tile.first_end / kMostEnds;
    }
    int next_end = tiles.ends_before[tile.item_tile + 1];
    tile.limit = static_cast<int>(minimum<int64_t>(kItems, tiles.total_items - int64_t{tile.item_tile} * kItems));
    const int next_further = (tile.further_before + 1) * kMostEnds;
    if (next_further <= next_end) {
      next_end = next_further;
      tile.limit = tiles.end_places[next_further - 1];
    }
    // Ends out of order may ask for more than there is.
    tile.limit = maximum(tile.limit, tile.begin);
    tile.ends = clamp(next_end - tile.first_end, 0, kMostEnds);
    return tile;
  }
};

// A thread's runs of a tile, in shared memory: the items of those with an end, and the sums of others. In registers
// they would leave too few for what is done about ends.
template <typename Operator>
struct StoredRuns {
  using State = typename Operator::State;
  using Shape = Shape<Operator>;
  static constexpr int kVectors = Shape::kRun / Shape::kVector;
  static constexpr bool kLoaded = false;
  static constexpr int kUnrolledRows = 1;
  struct Row {
    Vector<typename Operator::Element> items[kVectors][kThreads];
    State sums[kThreads];
  };

  const Operator& op;
  const TilePlaces& places;
  int place;  // of a lane's end
  Row* rows;  // [Shape::kRows]

  __device__ __forceinline__ void store(const RowVectors<Operator>& vectors) const {
    const LoadedRuns<Operator> loaded{op, places, vectors};
#pragma unroll
    for (int row = 0; row < Shape::kRows; ++row) {
      const int row_begin = (static_cast<int>(threadIdx.x) / kWarp * Shape::kRows + row) * Shape::kRowPlaces;
      const int before = row_begin > 0 ? row_begin : -1;  // the first row's ends are also those before all
      if (__any_sync(~0u, place > before && place <= row_begin + Shape::kRowPlaces)) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) rows[row].items[i][threadIdx.x] = vectors[row][i];
      } else {
        rows[row].sums[threadIdx.x] = loaded.sum(row);
      }
    }
  }
  __device__ __forceinline__ int place_of_end(const SegmentEnds&, const TileUnits&) const { return place; }
  __device__ __forceinline__ State sum(int row) const { return rows[row].sums[threadIdx.x]; }
  __device__ __forceinline__ void items(int row, State (&states)[Shape::kRun]) const {
    const int first = place_of<Operator>(row);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto vector = rows[row].items[i][threadIdx.x];
#pragma unroll
      for (int k = 0; k < Shape::kVector; ++k) {
        const int at = first + i * Shape::kVector + k;
        states[i * Shape::kVector + k] =
            at >= places.lead && at < places.limit ? op.extract(vector.items[k], places.origin + at) : op.identity();
      }
    }
  }
};

// Of a warp's rows, none of which has an end.
template <typename Operator>
__device__ __forceinline__ typename Operator::State sum_rows(const Operator& op, const LoadedRuns<Operator>& runs) {
  using State = typename Operator::State;
  State sum = op.identity();
#pragma unroll
  for (int row = 0; row < Shape<Operator>::kRows; ++row) {
    const State state = runs.sum(row);
    sum = op.combine(sum, Operator::kCommutes ? state : fold_lanes(op, state));
  }
  return Operator::kCommutes ? fold_lanes(op, sum) : sum;
}

template <typename Operator>
__global__ void __launch_bounds__(kThreads, 8)
    reduce_few_segments(const __grid_constant__ SegmentedReduction<Operator> reduction,
                        const __grid_constant__ ItemTiles tiles, const __grid_constant__ Operator op) {
  using State = typename Operator::State;
  using Shape = Shape<Operator>;
  using Stored = StoredRuns<Operator>;
  __shared__ alignas(16) char rows[Shape::kRows * sizeof(typename Stored::Row)];
  __shared__ WarpParts<State> parts[kThreads / kWarp];
  // The further tiles come first, as they wait twice for memory.
  const int item_tile = static_cast<int>(blockIdx.x) - tiles.further_tiles();
  const int64_t item = int64_t{item_tile} * Shape::kPlaces;
  const bool is_whole = item_tile >= 0 && reduction.aligned && item + Shape::kPlaces <= tiles.total_items;
  RowVectors<Operator> vectors;
  if (is_whole) load_vectors<true, Operator>(reduction.x + item, Shape::kPlaces, vectors);
  wait_for_last_kernel();
  const ItemTile tile = ItemTile::find<Shape::kPlaces>(tiles, item_tile);
  const TilePlaces places{int64_t{tile.item_tile} * Shape::kPlaces, tile.begin, tile.limit};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int place = Shape::kPlaces + 1;
  if (lane < tile.ends) place = clamp<int>(tiles.end_places[tile.first_end + lane], tile.begin, tile.limit);
  const int number = tile.item_tile + tile.further_before;
  // The kernel that joins tiles finds their first ends where it does for tiles of items and ends.
  const UnitTiles& joined = reduction.tiles;
  if (threadIdx.x == 0) joined.items_before[number] = number * int64_t{joined.units} - tile.first_end;
  const TileUnits units{0, tile.first_end, 0, 0, tile.ends};
  const int warp_begin = warp * Shape::kRows * Shape::kRowPlaces;
  const bool is_in_warp = place <= warp_begin + Shape::kRows * Shape::kRowPlaces && (warp == 0 || place > warp_begin);
  if (is_whole && !__any_sync(~0u, is_in_warp)) {
    const State open = sum_rows(op, LoadedRuns<Operator>{op, places, vectors});
    if (lane == 0) {
      parts[warp].open = open;
      parts[warp].ends = 0;
    }
  } else {
    if (!is_whole) load_items(reduction, places, vectors);
    const Stored stored{op, places, place, reinterpret_cast<typename Stored::Row*>(rows)};
    stored.store(vectors);
    reduce_rows_to_ends(reduction, op, units, places, stored, parts);
  }
  join_warps(reduction, op, number, units, parts);
}

}  // namespace mgpu::cuda::segment_reducing
