// Load-balancing search in a tile of short rows: each nonempty object marks the first of its
// outputs, and the last mark at or before an output in its row gives the output's object.
#pragma once

#include "algorithm/load_balance.h"
#include "cuda/block/row_tile.cuh"

namespace mgpu::cuda {

struct ShortWork {
  RowTiles tiles;
  WorkList work;
  Divisor size;
  Divisor objects;
  int pitch;

  static constexpr int kMaxOffset = 1 << 30;  // an offset past every output
  static constexpr int kMostRows = RowTiles::kSlots / 2;

  ShortWork(const WorkList& work, int64_t row_words)
      : work(work),
        size(work.size),
        objects(work.objects),
        pitch(work.offsets_stride == 0 ? 0 : static_cast<int>(work.objects)) {
    tiles = RowTiles(work.problems, maximum(work.size * row_words, is_shared() ? 0 : work.objects), kMostRows);
  }

  static bool fits(const WorkList& work, int64_t row_words) {
    return maximum(work.size * row_words, work.objects) <= RowTiles::kSlots && work.capacity < kMaxOffset;
  }

  struct Ends {
    int first, live, total;  // the members of WorkRow
  };
  int offsets_room() const { return shared_room(work.objects, pitch, tiles.tile_rows); }
  size_t shared_bytes() const {
    return RowTiles::kSlots * sizeof(uint16_t) + offsets_room() * sizeof(int) + tiles.tile_rows * sizeof(Ends);
  }
  // Whether all rows have the same objects at the same outputs; each row has its own number of live ones.
  MGPU_HOST_DEVICE bool is_shared() const { return pitch == 0 && work.drift == 0; }
};

// An output of a short row, as move_rows takes it: the tile begins with the row.
struct RowOutput {
  WorkRowOf<const int*, int> row;
  int64_t problem;
  int live;   // outputs below the total, as in TileWork
  int start;  // the start of the object that made the output
  static constexpr int begin = 0;
  static constexpr int before = 0;

  __device__ bool is_first(int i) const { return i == start; }
};

class WorkRows {
 public:
  // Contains barriers. `offsets_room` is problem.offsets_room().
  __device__ WorkRows(const ShortWork& problem, int offsets_room, void* shared)
      : tile(problem.tiles),
        problem_(problem),
        objects_(static_cast<uint16_t*>(shared)),
        offsets_{reinterpret_cast<int*>(objects_ + RowTiles::kSlots), problem.pitch},
        ends_(reinterpret_cast<ShortWork::Ends*>(offsets_.items + offsets_room)) {
    const WorkList& work = problem.work;
    const auto load = [&](auto* offsets) {
      load_rows(tile, offsets, problem.objects, work.offsets_stride, problem.pitch, offsets_.items, [](auto offset) {
        return static_cast<int>(clamp<decltype(offset)>(offset, -1, ShortWork::kMaxOffset));
      });
    };
    reinterpret_cast<Marks*>(objects_)[threadIdx.x] = {};
    work.offsets.wide ? load(static_cast<const int64_t*>(work.offsets.data))
                      : load(static_cast<const int32_t*>(work.offsets.data));
    __syncthreads();
    const auto find = [](int begin, int end, auto before) { return partition_point(begin, end, before); };
    for (int r = threadIdx.x; r < tile.rows; r += kRowThreads) {
      auto row = this->row(r, {0, static_cast<int>(work.live(tile.first + r)), 0});
      row.first = row.find_first(find);
      ends_[r] = {row.first, row.live, row.find_total(size(), find)};
    }
    if (work.drift != 0) __syncthreads();
    mark_heads();
    __syncthreads();
    carry_marks();
    __syncthreads();
  }

  // Calls visit(output, object, is_made) with the object of output i of a row, which is slot `slot` of the tile. Past
  // the live outputs, there is no object.
  template <typename Visit>
  __device__ auto with_output(int slot, int row, int i, Visit visit) const {
    const ShortWork::Ends ends = ends_[row];
    RowOutput output{this->row(row, ends), tile.first + row, ends.total, -1};
    const int mark = objects_[problem_.is_shared() ? i : slot];
    const int object = i < ends.total ? maximum(mark, ends.first) - 1 : -1;
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

  // Of several objects with one start, all but the last are empty. Without drift, objects past the live ones start
  // after all live outputs, so rows that share offsets share marks.
  __device__ void mark_heads() const {
    RowTile marked = tile;
    if (problem_.is_shared()) marked.rows = 1;
    for_each_slot(marked, problem_.objects, [&](int, int r, int object) {
      const auto row = this->row(r, problem_.work.drift == 0 ? ShortWork::Ends{0, ShortWork::kMaxOffset, 0} : ends_[r]);
      const auto start_of = [&](int j) { return row.starts_before(j, size()) ? row.start(j) : size(); };
      const int start = start_of(object);
      const int next = object + 1 < row.objects ? start_of(object + 1) : size();
      if (object >= row.first && start >= 0 && start < next) {
        objects_[r * size() + start] = static_cast<uint16_t>(object + 1);
      }
    });
  }

  __device__ void carry_marks() const {
    __shared__ unsigned warp_last[kRowThreads / kWarp];
    Marks marks = reinterpret_cast<const Marks*>(objects_)[threadIdx.x];
    const int begin = static_cast<int>(threadIdx.x) * kLaneSlots;
    const int first_row = static_cast<int>(problem_.size.quotient(begin));
    const auto for_each_mark = [&](auto visit) {
      int row = first_row;
      int left = (first_row + 1) * size() - begin;
#pragma unroll
      for (int k = 0; k < kLaneSlots; ++k) {
        if (left == 0) {
          ++row;
          left = size();
        }
        --left;
        visit(marks.items[k], static_cast<unsigned>(row) << 16);
      }
    };
    unsigned last = 0;
    for_each_mark([&](uint16_t mark, unsigned row) {
      if (mark != 0) last = row | mark;
    });
    const auto greatest = [](unsigned a, unsigned b) { return maximum(a, b); };
    last = scan_block<kRowThreads / kWarp>(warp_last, last, 0u, greatest).before;
    for_each_mark([&](uint16_t& mark, unsigned row) {
      if (mark != 0) last = row | mark;
      mark = last >= row ? static_cast<uint16_t>(last) : uint16_t{0};
    });
    reinterpret_cast<Marks*>(objects_)[threadIdx.x] = marks;
  }

  static constexpr int kLaneSlots = RowTiles::kSlots / kRowThreads;
  struct alignas(16) Marks {
    uint16_t items[kLaneSlots];
  };

  const ShortWork& problem_;
  uint16_t* objects_;  // 1 + the object of each output, 0 if no object of its row starts at or before it
  SharedRows<int> offsets_;
  ShortWork::Ends* ends_;
};

}  // namespace mgpu::cuda
