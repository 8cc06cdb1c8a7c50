// A scan is one pass over memory; initial items may take a second one
// (launch_begin). There are kernels for tiles of long rows, for whole rows
// that are not long, for several short rows per warp or block, and for all
// other scans (scan_segments.cuh), among them those that restart at heads.
#include "cuda/launch/overlapping.h"
#include "cuda/launch/shapes.h"
#include "ops/common/dispatch_operator.h"
#include "ops/scan/scan_packs.cuh"
#include "ops/scan/scan_rows.cuh"
#include "ops/scan/scan_segments.cuh"
#include "ops/scan/scan_tiles.cuh"
#include "ops/scan/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace scanning {

// Devices before sm_80 do not grant a block the shared memory that scan_tiles needs.
bool has_shared_tiles(const Call& call) {
  return shared_memory_limit(call) >= TileShape::kBytes + TileShape::kStaticBytes;
}

template <typename Operator>
ScanTask<Operator> task_of(const ScanOperands& operands) {
  Segments restarts = operands.segments;
  restarts.counts = {};
  return {.x = static_cast<const typename Operator::Element*>(operands.x),
          .aligned = is_aligned(operands.x) && is_aligned(operands.result),
          .exclusive = operands.exclusive,
          .reverse = operands.reverse,
          .segments = operands.segments,
          .restarts = restarts,
          .result = {operands.result, operands.wide_result},
          .totals = {operands.totals, operands.wide_result},
          .initial = operands.initial};
}

template <ScanOperands::Path kPath, typename Operator>
void launch(const Call& call, const ScanOperands& operands, const Operator& op, CUstream_st* stream) {
  using State = typename Operator::State;
  using Path = ScanOperands::Path;
  const Segments& segments = operands.segments;
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace, sizeof(State));
  const auto tiles = operands.tiles(kPath, sizeof(State));
  ScanTask<Operator> task = task_of<Operator>(operands);
  task.tiles = tiles.per_row;
  task.look_back = scratch.look_back;
  task.listed = scratch.listed;
  if constexpr (kPath == Path::kWarpByRow) {
    // A warp with several rows loads the next one ahead. The
    // grid has up to 16 times as many blocks as are resident.
    const bool whole = segments.length % Vector<typename Operator::Element>::kItems == 0;
    const auto kernel = whole ? scan_rows<Operator, true> : scan_rows<Operator, false>;
    const int64_t blocks = ceil_div<int64_t>(segments.rows, kWarps);
    const int resident = resident_blocks(call, kernel, kThreads, 0, blocks);
    kernel<<<static_cast<unsigned>(minimum<int64_t>(blocks, 16 * resident)), kThreads, 0, stream>>>(task, op);
    return check_launch(call);
  }
  check(call, cudaMemsetAsync(scratch.look_back, 0, tiles.look_back_words() * sizeof(uint64_t), stream));
  if constexpr (kPath == Path::kTilesByRow) {
    const auto kernel = scan_tiles<Operator>;
    allow_shared(call, kernel, TileShape::kBytes);
    const int blocks = resident_blocks(call, kernel, TileShape::kThreads, TileShape::kBytes, tiles.count());
    kernel<<<blocks, TileShape::kThreads, TileShape::kBytes, stream>>>(task, op);
    check_launch(call);
  } else if constexpr (kPath == Path::kSegments) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>((tiles.count() + 1) * kWarp, kThreads));
    list_heads<><<<blocks, kThreads, 0, stream>>>(segments, tiles.count(), Shape<Operator>::kTile, operands.reverse,
                                                  scratch.listed);
    check_launch(call);
    launch_overlapping(call, stream, scan_segments<Operator>, tiles.count(), kThreads, 0, task, op);
  }
}

// Returns false if packs are not used (takes_packs), or if the arrays do not begin at multiples of 16 bytes.
template <typename Operator>
bool launch_packs(const Call& call, const ScanOperands& operands, const Operator& op, CUstream_st* stream) {
  const auto task = task_of<Operator>(operands);
  const PackedRows packed(operands.segments.length, Vector<typename Operator::Element>::kItems);
  if (!task.aligned || !takes_packs<Operator>(packed, operands.segments)) return false;
  const int64_t blocks = ceil_div<int64_t>(operands.segments.rows, int64_t{packed.rows} * kPacks<Operator> * kWarps);
  scan_packs<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(task, packed, op);
  check_launch(call);
  return true;
}

// Returns false if the rows of a block take too much shared memory.
template <typename Operator>
bool launch_short_rows(const Call& call, const ScanOperands& operands, const Operator& op, CUstream_st* stream) {
  const Segments& segments = operands.segments;
  const RowTiles tiles(segments.rows, segments.length);
  const short_rows::Scan<Operator> problem{tiles,
                                           static_cast<const typename Operator::Element*>(operands.x),
                                           segments,
                                           Divisor(segments.length),
                                           shared_pitch(segments.length, false),
                                           tiles.odd_share(segments.length),
                                           operands.exclusive,
                                           operands.reverse,
                                           {operands.result, operands.wide_result},
                                           {operands.totals, operands.wide_result}};
  if (problem.shared_bytes() > RowTiles::kMostSharedBytes) return false;
  launch_rows(call, stream, short_rows::scan<Operator>, tiles, problem.shared_bytes(), problem, op);
  return true;
}

// Combines initial items into the results of a scan, by a second pass over the results.
template <typename Operator>
void launch_begin(const Call& call, const ScanOperands& operands, const Operator& op, CUstream_st* stream) {
  if constexpr (!Operator::kGivesIndex) {
    const Segments& segments = operands.segments;
    const int64_t threads = maximum<int64_t>(segments.total(), segments.rows);
    const int blocks = resident_blocks(call, begin_rows<Operator>, kThreads, 0, ceil_div<int64_t>(threads, kThreads));
    begin_rows<<<blocks, kThreads, 0, stream>>>(task_of<Operator>(operands), op);
    check_launch(call);
  }
}

}  // namespace scanning

void list_scan_shapes(const Call&, KernelShapeList& list) {
  constexpr int64_t kBytes = scanning::TileShape::kBytes + scanning::TileShape::kStaticBytes;
  list.push_back({"scan", {{kBytes, kBytes}}, true});
}

namespace {

// Returns true if the results need no second pass for initial items.
bool scan_items(const Call& call, const ScanOperands& operands, CUstream_st* stream) {
  using Path = ScanOperands::Path;
  const Segments& segments = operands.segments;
  if (segments.total() == 0) {
    if (!operands.totals || segments.rows == 0) return true;
    operands.dispatch<true>(call, [&](auto op) {
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(segments.rows, scanning::kThreads));
      const ResultVector<decltype(op)> totals{operands.totals, operands.wide_result};
      scanning::fill_totals<<<blocks, scanning::kThreads, 0, stream>>>(totals, segments.rows, op);
      check_launch(call);
    });
    return false;
  }
  if (!operands.has_heads() && segments.length <= RowTiles::kMostSlots) {
    bool launched = false;
    operands.dispatch<true>(call, [&](auto op) {
      launched = scanning::launch_packs(call, operands, op, stream);
      if (launched || operands.path() == Path::kWarpByRow) return;
      launched = scanning::launch_short_rows(call, operands, op, stream);
    });
    if (launched) return false;
  }
  const bool aligned = is_aligned(operands.x) && is_aligned(operands.result);
  const bool fits = operands.path() == Path::kTilesByRow ? scanning::has_shared_tiles(call) : aligned;
  const Path path = fits ? operands.path() : Path::kSegments;
  const auto launch_whole = [&](auto op) {
    path == Path::kWarpByRow ? scanning::launch<Path::kWarpByRow>(call, operands, op, stream)
                             : scanning::launch<Path::kTilesByRow>(call, operands, op, stream);
  };
  // Sums have their own instances of the kernels that `launch_whole` launches. The segmented kernel has one instance
  // for sums and products. From here on, products whose states have up to 4 bytes take the segmented kernel.
  if (path != Path::kSegments && operands.kind == OperatorKind::kAdd) {
    dispatch_arithmetic<ArithmeticKind::kSum>(call, operands.dtype, false, launch_whole);
    return path == Path::kTilesByRow;
  }
  bool begun = false;
  operands.dispatch<true>(call, [&](auto op) {
    if constexpr (!requires { op.multiply; } || sizeof(typename decltype(op)::State) == 8) {
      if (path != Path::kSegments) {
        begun = path == Path::kTilesByRow;
        return launch_whole(op);
      }
    }
    scanning::launch<Path::kSegments>(call, operands, op, stream);
  });
  return begun;
}

}  // namespace

void scan(const Call& call, CUstream_st* stream) {
  const ScanOperands operands(call);
  if (scan_items(call, operands, stream) || !operands.initial) return;
  operands.dispatch<true>(call, [&](auto op) { scanning::launch_begin(call, operands, op, stream); });
}

}  // namespace mgpu::cuda
