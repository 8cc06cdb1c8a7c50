// Unless rows are short, merge path cuts both inputs into tiles. A block merges a tile and counts
// the partners of the tile's items of A, and a look-back over the tiles finds where the output
// rows of these items go. In a second kernel, blocks share the tiles with very many output rows.
#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch.h"
#include "ops/join/join_tiles.cuh"
#include "ops/join/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace joining {

template <typename Order>
void run(const Call& call, const JoinOperands& operands, Order order, cudaStream_t stream) {
  using P = Problem<Order>;
  Workspace workspace = workspace_of(call);
  const JoinOperands::Scratch scratch = operands.layout(workspace);
  const P problem{{operands.pair, order}, operands.keep_a,    operands.keep_b,    operands.row_tiles(),
                  operands.size,          operands.a_indices, operands.b_indices, scratch};
  check(call, cudaMemsetAsync(scratch.zeroed, 0, scratch.zeroed_words * sizeof(uint64_t), stream));

  constexpr int kEdgeThreads = 128;
  const int64_t edges = operands.pair.rows * (operands.row_tiles() + 1);
  find_edges<<<ceil_div<int64_t>(edges, kEdgeThreads), kEdgeThreads, 0, stream>>>(problem);
  check_launch(call);
  launch_overlapping(call, stream, join_tiles<Order>, operands.tiles(), P::kThreads, 0, problem);
  if (operands.size > 0) {
    const auto kernel = join_heavy_tiles<Order>;
    const int64_t units = operands.pair.rows * (ceil_div(operands.size, kJoinUnit) + 1);
    const int blocks = resident_blocks(call, kernel, P::kThreads, 0, units);
    launch_overlapping(call, stream, kernel, blocks, P::kThreads, 0, problem);
  }
  const int64_t pieces = tail_pieces(operands.pair.rows, operands.size);
  const int blocks = resident_blocks(call, finish_rows, kTailThreads, 0, pieces);
  launch_overlapping(call, stream, finish_rows, blocks, kTailThreads, 0, operands, scratch);
}

template <typename Order>
bool run_short_rows(const Call& call, const JoinOperands& operands, Order order, cudaStream_t stream) {
  using Join = short_rows::Join<Order>;
  const SortedPair& pair = operands.pair;
  if (!ShortPair<Order>::fits(pair, 0, RowTiles::kSlots) || operands.size > Join::kMaxSize) return false;
  const ShortPair<Order> rows(pair, order, operands.size);
  const Join problem{rows,
                     Divisor(operands.size),
                     rows.tiles.share(pair.a.length),
                     rows.tiles.share(pair.b.length),
                     operands.keep_a,
                     operands.keep_b,
                     operands.a_indices,
                     operands.b_indices,
                     operands.counts};
  if (problem.shared_bytes() > RowTiles::kMostSharedBytes) return false;
  launch_rows(call, stream, short_rows::join<Order>, rows.tiles, problem.shared_bytes(), problem);
  return true;
}

}  // namespace joining

void join(const Call& call, cudaStream_t stream) {
  const JoinOperands operands(call);
  if (operands.pair.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    if (!joining::run_short_rows(call, operands, order, stream)) joining::run(call, operands, order, stream);
  });
}

}  // namespace mgpu::cuda
