#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch.h"
#include "ops/run_heads/kernels.cuh"
#include "ops/run_heads/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace run_marking {

template <typename Order>
void run(const Call& call, const RunHeadsOperands& operands, Order order, cudaStream_t stream) {
  using Task = RunTask<Order>;
  using Word = typename Order::Word;
  const Segments& rows = operands.rows;
  Workspace workspace = workspace_of(call);
  const int64_t row_tiles = operands.cuda_row_tiles();
  const Task task{static_cast<const Word*>(operands.keys),
                  is_aligned(operands.keys) && (rows.rows == 1 || rows.length % Vector<Word>::kItems == 0),
                  order,
                  rows,
                  row_tiles,
                  operands.size,
                  operands.heads,
                  static_cast<Word*>(operands.firsts),
                  operands.covered,
                  operands.runs,
                  operands.layout(workspace)};
  const auto tiles = static_cast<unsigned>(rows.rows * row_tiles);
  mark_heads<<<tiles, kThreads, 0, stream>>>(task);
  check_launch(call);
  const TileCounts& counts = task.scratch.tiles;
  launch_overlapping(call, stream, sum_tiles<SetRuns>, rows.rows, sum_threads(counts), 0, counts,
                     SetRuns{operands.runs, operands.covered, rows, operands.size});
  launch_overlapping(call, stream, write_heads<Order>, tiles, Task::kTileWords, 0, task);
  const int64_t pieces = tail_pieces(rows.rows, operands.size);
  if (pieces == 0) return;
  const auto kernel = pad_tails<Word>;
  launch_overlapping(call, stream, kernel, resident_blocks(call, kernel, kTailThreads, 0, pieces), kTailThreads, 0,
                     rows.rows, rows.length, operands.size, IndexVector{operands.runs.data, operands.runs.wide},
                     operands.heads, task.firsts);
}

template <typename Order>
void run_short_rows(const Call& call, const RunHeadsOperands& operands, Order order, cudaStream_t stream) {
  using Word = typename Order::Word;
  const Segments& rows = operands.rows;
  const RowTiles tiles(rows.rows, maximum(rows.length, operands.size));
  const int pitch = shared_pitch(rows.length, false);
  const short_rows::RunHeads<Order> problem{tiles,
                                            order,
                                            rows,
                                            static_cast<const Word*>(operands.keys),
                                            Divisor(rows.length),
                                            Divisor(operands.size),
                                            pitch,
                                            shared_room(rows.length, pitch, tiles.tile_rows),
                                            tiles.share(rows.length),
                                            operands.heads,
                                            static_cast<Word*>(operands.firsts),
                                            operands.covered,
                                            operands.runs};
  launch_rows(call, stream, short_rows::run_heads<Order>, tiles, problem.shared_bytes(), problem);
}

}  // namespace run_marking

void run_heads(const Call& call, cudaStream_t stream) {
  const RunHeadsOperands operands(call);
  if (operands.rows.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    const bool is_short = maximum(operands.rows.length, operands.size) <= RowTiles::kMostSlots;
    is_short ? run_marking::run_short_rows(call, operands, order, stream)
             : run_marking::run(call, operands, order, stream);
  });
}

}  // namespace mgpu::cuda
