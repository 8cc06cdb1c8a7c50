// The call of scan as its kernels see it: the same on both platforms.
#pragma once

#include "algorithm/look_back.h"
#include "operands/operators.h"
#include "workspace.h"

namespace mgpu {

// Operands: x [.., n], heads [.., m] or absent, count [.., 1] or absent. Attributes: op, exclusive, reverse, total.
// Results: [.., n], and with `total` one a row.
struct ScanOperands : OperatorOperands {
  bool exclusive;
  bool reverse;
  void* result;
  void* totals = nullptr;
  bool wide_result;

  explicit ScanOperands(const Call& call)
      : OperatorOperands(call, call.operands.at(0), &call.operands.at(1), call.operands.at(2)),
        exclusive(call.attributes["exclusive"] != 0),
        reverse(call.attributes["reverse"] != 0),
        result(call.results.at(0).data),
        wide_result(call.results.at(0).dtype == DType::s64) {
    expect_result(call, call.results.at(0), segments.total());
    if (call.attributes["total"] != 0) {
      totals = call.results.at(1).data;
      expect_result(call, call.results.at(1), segments.rows);
    }
  }

  // Whether the scan restarts anywhere but at the start of a row.
  bool has_heads() const { return segments.heads_count > 0; }

  // A CUDA block scans tiles of threads times items: 64 bytes of states a thread stay in registers, and leave room for
  // enough blocks to hide each other's waiting; a thread loads 16 bytes at least.
  static constexpr int kThreads = 256;
  static constexpr int items_per_thread(int64_t state_bytes, int64_t element_bytes) {
    return static_cast<int>(maximum(64 / state_bytes, 16 / element_bytes));
  }
  int64_t tile_items(int64_t state_bytes) const { return kThreads * items_per_thread(state_bytes, byte_width(dtype)); }

  // Tiles on a grid over all rows, or on one of each row's own, where the rows are long enough that their partly filled
  // last tiles do not count, and start at addresses that 16-byte loads can use.
  struct Tiles {
    int64_t per_row;  // of one look-back
    int64_t rows;
    int64_t count() const { return per_row * rows; }
  };
  bool has_tiles_by_row(int64_t tile) const {
    return !has_heads() && (segments.rows == 1 || (segments.length >= 8 * tile && segments.length % 16 == 0));
  }
  Tiles tiles(int64_t tile) const {
    if (has_tiles_by_row(tile)) return {ceil_div(segments.length, tile), segments.rows};
    return {ceil_div(segments.total(), tile), 1};
  }

  // Scratch memory of the CUDA kernels: the tiles' look-backs with a ticket counter before them, over states since the
  // last restart, and the listed heads before each tile.
  struct Scratch {
    uint64_t* look_back;
    int64_t look_back_words;
    int64_t* listed;
  };
  Scratch layout(Workspace& workspace, int64_t state_bytes) const {
    const Tiles tiles = this->tiles(tile_items(state_bytes));
    const int64_t words = 1 + tiles.rows * LookBackLayout{tiles.per_row}.words(since_restart_bytes(state_bytes));
    return {workspace.take<uint64_t>(words), words, workspace.take<int64_t>(tiles.count() + 1)};
  }
};

}  // namespace mgpu
