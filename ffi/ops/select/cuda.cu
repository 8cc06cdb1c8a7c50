#include "cuda/launch/overlapping.h"
#include "ops/move_rows/launch.h"
#include "ops/select/kernels.cuh"
#include "ops/select/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace selecting {

template <typename Mover>
void run(const Call& call, const SelectOperands& operands, const Mover& mover, int64_t shares, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const auto tiles = static_cast<unsigned>(operands.rows * operands.row_tiles(kSelectTile));
  const int64_t blocks = kMarkBlocks * multiprocessors(call);
  const int64_t in_turn = clamp<int64_t>(tiles / blocks / kMarksInFlight, 1, kMarkTiles / kMarksInFlight);
  const SelectTask task{operands, operands.layout(workspace), operands.row_tiles(kSelectTile),
                        is_aligned(operands.keep) && operands.keep_stride % 16 == 0,
                        static_cast<int>(in_turn * kMarksInFlight)};
  mark_kept<<<ceil_div<unsigned>(tiles, task.mark_tiles), kThreads, 0, stream>>>(task);
  check_launch(call);
  const TileCounts& counts = task.scratch.tiles;
  launch_overlapping(call, stream, sum_tiles<SetKept>, static_cast<unsigned>(operands.rows), sum_threads(counts), 0,
                     counts, SetKept{operands.kept});
  if (operands.size == 0) return;
  const auto write = operands.partition ? write_kept<true, Mover> : write_kept<false, Mover>;
  launch_overlapping(call, stream, write, dim3(tiles, static_cast<unsigned>(shares)), kThreads, 0, task, mover);
  const int64_t pieces = operands.partition ? 0 : tail_pieces(operands.rows, operands.size * mover.row_words);
  if (pieces == 0) return;
  const auto kernel = fill_tails<Mover>;
  launch_overlapping(call, stream, kernel, resident_blocks(call, kernel, kTailThreads, 0, pieces), kTailThreads, 0,
                     operands.rows, operands.size, IndexVector{operands.kept.data, operands.kept.wide}, mover);
}

template <typename Mover>
void run_items(const Call& call, const SelectOperands& operands, const Mover& mover, cudaStream_t stream) {
  if (maximum(operands.length, operands.size) > RowTiles::kMostSlots) return run(call, operands, mover, 1, stream);
  const short_rows::Select problem(operands);
  launch_rows(call, stream, short_rows::select<Mover>, problem.tiles, problem.shared_bytes(), problem, mover);
}

}  // namespace selecting

void select(const Call& call, cudaStream_t stream) {
  using namespace selecting;
  const SelectOperands operands(call);
  if (operands.rows == 0) return;
  const int64_t row_bytes = operands.out.row_bytes;
  if (operands.gives_indices) {
    return run_items(call, operands, SetIndices{operands.indices, operands.size, operands.length}, stream);
  }
  dispatch_row_word(row_bytes, [&](auto word) {
    using Word = decltype(word);
    if (!is_wide_row(row_bytes)) {
      return run_items(call, operands, MoveItems<Word>{operands.x, operands.out, operands.fill}, stream);
    }
    const int64_t words = row_bytes / sizeof(Word);
    run(call, operands,
        MoveWideRows<Word>{operands.x, operands.out, operands.fill, words,
                           1 << ceil_log2(minimum<int64_t>(words, kWarp))},
        select_shares(operands.rows * operands.row_tiles(kSelectTile), row_bytes), stream);
  });
}

}  // namespace mgpu::cuda
