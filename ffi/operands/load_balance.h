// The objects of a load-balancing search as read from a call, and the call of load_balance_search itself.
#pragma once

#include "algorithm/load_balance.h"
#include "call.h"
#include "workspace.h"

namespace mgpu {

struct NamedArray {
  const Array& array;
  const char* name;
};

// Sets the operands of `work`, whose sizes are set: offsets [.., objects] and the live count [.., 1] or absent.
inline void read_work(const Call& call, WorkList& work, NamedArray offsets, NamedArray count) {
  work.objects = Call::length(offsets.array);
  work.offsets = call.index_vector(offsets.array, offsets.name);
  work.offsets_stride = call.row_stride(offsets.array, work.objects, work.problems, offsets.name);
  if (Call::length(count.array) > 0) {
    work.counts = call.index_vector(count.array, count.name);
    work.counts_stride = call.row_stride(count.array, 1, work.problems, count.name);
  }
}

// A CUDA block finds the objects of this many outputs: fewer where each is a wide row to be moved.
constexpr int kWorkThreads = 256;
constexpr int work_items(bool wide_rows) { return wide_rows ? 4 : 16; }

inline WorkTiles take_work_tiles(Workspace& workspace, const WorkList& work, bool wide_rows) {
  const int64_t tile = kWorkThreads * work_items(wide_rows);
  WorkTiles tiles{tile, ceil_div(work.size, tile)};
  tiles.cells = workspace.take<int64_t>(work.problems * tiles.stride());
  return tiles;
}

// Operands: offsets [.., objects], total [.., 1] or absent. Results: objects [.., size], and ranks [.., size] if asked
// for, both int32 or both int64.
struct LoadBalanceOperands {
  WorkList work;
  bool wide;  // int64 results
  void* objects;
  void* ranks = nullptr;

  explicit LoadBalanceOperands(const Call& call) {
    call.expect(call.operands.size() == 2, "expected 2 operands");
    const Array& out = call.results.at(0);
    work.problems = Call::batch(out, 1);
    work.size = work.capacity = Call::length(out);
    read_work(call, work, {call.operands[0], "offsets"}, {call.operands[1], "total"});
    wide = call.index_vector(out, "objects").wide;
    objects = out.data;
    if (call.attributes["return_rank"] != 0) {
      const Array& rank = call.results.at(1);
      call.expect(rank.dtype == out.dtype && rank.size() == out.size(), "ranks: expected the shape of the objects");
      ranks = rank.data;
    }
  }

  WorkTiles layout(Workspace& workspace) const { return take_work_tiles(workspace, work, false); }
};

}  // namespace mgpu
