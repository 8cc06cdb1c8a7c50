// Load-balancing search in a tile of short rows: a thread searches the object of the first of its outputs among the
// row's offsets, in shared memory, and goes on from there.
#pragma once

#include "algorithm/load_balance.h"
#include "cuda/cta/row_tile.cuh"

namespace mgpu::cuda {

struct ShortWork {
  RowTiles tiles;
  WorkList work;
  Divisor size;
  Divisor objects;
  int pitch;
  int share;  // outputs of a thread

  static constexpr int kMostOffset = 1 << 30;  // past every output

  // `row_words` are those that an output moves.
  ShortWork(const WorkList& work, int64_t row_words)
      : tiles(work.problems, maximum(work.size * row_words, work.offsets_stride == 0 ? 0 : work.objects)),
        work(work),
        size(work.size),
        objects(work.objects),
        pitch(shared_pitch(work.objects, work.offsets_stride == 0)),
        share(tiles.odd_share(work.size)) {}

  // Longer rows fill tiles of their own.
  static bool fits(const WorkList& work, int64_t row_words) {
    return maximum(work.size * row_words, work.objects) <= RowTiles::kSlots && work.capacity < kMostOffset;
  }

  struct Ends {
    int first, live, total;  // as of a WorkRow
  };
  // What is known of each row, the offsets, the objects of the outputs.
  int offsets_room() const { return shared_room(work.objects, pitch, tiles.tile_rows); }
  size_t shared_bytes() const {
    return tiles.tile_rows * sizeof(Ends) + offsets_room() * sizeof(int) +
           spread(tiles.tile_rows * static_cast<int>(work.size)) * sizeof(uint16_t);
  }
};

// An output of a row, as a route sees it: a tile that begins with the row, and of which it is asked for one output.
struct RowOutput {
  WorkRowOf<const int*, int> row;
  int64_t problem;
  int live;
  int start;  // of the object that made the output
  static constexpr int begin = 0;
  static constexpr int before = 0;

  __device__ bool is_first(int i) const { return i == start; }
};

class WorkRows {
 public:
  // Contains barriers. `offsets_room` is that of the problem.
  __device__ WorkRows(const ShortWork& problem, int offsets_room, void* shared)
      : tile(problem.tiles),
        problem_(problem),
        ends_(static_cast<ShortWork::Ends*>(shared)),
        offsets_{reinterpret_cast<int*>(ends_ + problem.tiles.tile_rows), problem.pitch},
        next_objects_(reinterpret_cast<uint16_t*>(offsets_.items + offsets_room)) {
    const WorkList& work = problem.work;
    const auto load = [&](auto* offsets) {
      load_rows(tile, offsets, problem.objects, work.offsets_stride, problem.pitch, offsets_.items, [](auto offset) {
        return static_cast<int>(clamp<decltype(offset)>(offset, -1, ShortWork::kMostOffset));
      });
    };
    work.offsets.wide ? load(static_cast<const int64_t*>(work.offsets.data))
                      : load(static_cast<const int32_t*>(work.offsets.data));
    __syncthreads();
    const auto find = [](int begin, int end, auto before) { return partition_point(begin, end, before); };
    if (static_cast<int>(threadIdx.x) < tile.rows) {
      auto row = this->row(threadIdx.x, {0, static_cast<int>(work.live(tile.first + threadIdx.x)), 0});
      row.first = row.find_first(find);
      ends_[threadIdx.x] = {row.first, row.live, row.find_total(size(), find)};
    }
    __syncthreads();

    const RowLane lane(tile, problem.tiles, problem.share);
    const ShortWork::Ends ends = ends_[lane.row];
    const int end = lane.exists ? minimum(lane.begin + problem.share, ends.total) : 0;
    if (lane.begin < end) {
      const auto row = this->row(lane.row, ends);
      int next = row.first_from(lane.begin + 1, find);
      for (int i = lane.begin; i < end; ++i) {
        next = galloping_partition_point(next, row.objects, [&](int j) { return row.starts_before(j, i + 1); });
        next_objects_[spread(lane.row * size() + i)] = static_cast<uint16_t>(next);
      }
    }
    __syncthreads();
  }

  // Calls visit(output, object, is_made) with the object that made output i of a row, which is slot `slot` of the tile;
  // past the live outputs with no object.
  template <typename Visit>
  __device__ auto with_output(int slot, int row, int i, Visit visit) const {
    const ShortWork::Ends ends = ends_[row];
    RowOutput output{this->row(row, ends), tile.first + row, ends.total, -1};
    const int object = i < ends.total ? next_objects_[spread(slot)] - 1 : -1;
    const bool is_made = object >= ends.first;
    if (is_made) output.start = output.row.start(object);
    return visit(output, object, is_made);
  }

  const RowTile tile;

 private:
  __device__ int size() const { return static_cast<int>(problem_.size.divisor); }
  __device__ WorkRowOf<const int*, int> row(int row, const ShortWork::Ends& ends) const {
    return {offsets_.row(row),
            static_cast<int>(problem_.objects.divisor),
            static_cast<int>(problem_.work.drift),
            ends.live,
            ends.first,
            ends.total};
  }

  const ShortWork& problem_;
  ShortWork::Ends* ends_;
  SharedRows<int> offsets_;
  uint16_t* next_objects_;  // of each live output, the one behind that which made it
};

}  // namespace mgpu::cuda
