// The call of run_heads as its kernels see it: where the runs of equal neighbouring keys start.
#pragma once

#include "algorithm/segments.h"
#include "operands/dispatch.h"
#include "workspace.h"

namespace mgpu {

// Operands: keys [.., n], count [.., 1] or absent. Results: heads [.., size], the first position of each run, n past
// the last; firsts [.., size], the keys there, 0 past the last; covered [..], the live items that the first `size` runs
// hold; runs [..], how many there are.
struct RunHeadsOperands {
  // A CUDA block's tile: 64 bytes a thread keep enough loads in flight.
  static constexpr int kThreads = 256;
  static constexpr int tile_items(int key_width) { return kThreads * (key_width == 8 ? 8 : 16); }

  DType key_type;
  const void* keys;
  Segments rows;  // without heads: the live items of each row
  int64_t size;
  IndexResult heads;
  void* firsts;
  IndexResult covered;
  IndexResult runs;

  explicit RunHeadsOperands(const Call& call) {
    const Array& keys_in = call.operands.at(0);
    const Array& count = call.operands.at(1);
    key_type = keys_in.dtype;
    keys = keys_in.data;
    rows.length = Call::length(keys_in);
    rows.rows = Call::batch(keys_in, 1);
    if (Call::length(count) > 0) {
      rows.counts = call.index_vector(count, "count");
      rows.counts_stride = call.row_stride(count, 1, rows.rows, "count");
    }
    const Array& firsts_out = call.results.at(1);
    size = Call::length(firsts_out);
    firsts = firsts_out.data;
    call.expect(firsts_out.dtype == key_type && firsts_out.size() == rows.rows * size, "firsts: expected keys");
    heads = read(call, 0, rows.rows * size);
    covered = read(call, 2, rows.rows);
    runs = read(call, 3, rows.rows);
  }

  // A row has one tile at least, which tells its number of runs.
  int64_t row_tiles(int64_t tile) const { return maximum<int64_t>(1, ceil_div(rows.length, tile)); }
  int64_t cuda_row_tiles() const { return row_tiles(tile_items(byte_width(key_type))); }

  // Scratch memory of the CUDA kernels: a bit for each place in a tile, the heads in each tile, and those in the row
  // before each group of tiles.
  static constexpr int kGroupTiles = 16;
  int64_t row_groups() const { return ceil_div<int64_t>(cuda_row_tiles(), kGroupTiles); }
  struct Scratch {
    unsigned* head_bits;
    int* tile_heads;  // rows begin with a group
    int64_t* before_group;
  };
  Scratch layout(Workspace& workspace) const {
    const int64_t words = rows.rows * cuda_row_tiles() * tile_items(byte_width(key_type)) / 32;
    const int64_t groups = rows.rows * row_groups();
    return {workspace.take<unsigned>(words), workspace.take<int>(groups * kGroupTiles),
            workspace.take<int64_t>(groups)};
  }

 private:
  static IndexResult read(const Call& call, size_t result, int64_t size) {
    const Array& array = call.results.at(result);
    call.expect((array.dtype == DType::s32 || array.dtype == DType::s64) && array.size() == size,
                "results: expected int32 or int64, one a run or one a row");
    return {array.data, array.dtype == DType::s64};
  }
};

}  // namespace mgpu
