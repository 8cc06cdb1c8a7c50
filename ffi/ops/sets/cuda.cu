// One pass over the inputs: the balanced path cuts both into tiles, a block merges a tile and selects the kept items,
// and a look-back over the tiles finds the slots of these items. Short rows have a kernel of their own.
#include "cuda/launch/overlapping.h"
#include "cuda/launch/shapes.h"
#include "ops/common/dispatch.h"
#include "ops/sets/keep_items.cuh"
#include "ops/sets/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace set_operations {

template <typename Word>
void fill(const Call& call, const SetsOperands& operands, void* out, SetsOperands::Rows value, cudaStream_t stream) {
  const int64_t pieces = tail_pieces(operands.pair.rows, operands.size);
  if (pieces == 0) return;
  const auto kernel = fill_tails<Word>;
  launch_overlapping(call, stream, kernel, resident_blocks(call, kernel, kTailThreads, 0, pieces), kTailThreads, 0,
                     static_cast<Word*>(out), operands.pair.rows, operands.size,
                     IndexVector{operands.counts.data, operands.counts.wide}, value);
}

template <typename Payload, typename Order>
void run(const Call& call, const SetsOperands& operands, Order order, cudaStream_t stream) {
  using P = Problem<Order, Payload>;
  Workspace workspace = workspace_of(call);
  const SetsOperands::Scratch scratch = operands.layout(workspace);
  const SortedPair& pair = operands.pair;
  const MergeTiles<Order> tiles{pair, order};
  const int64_t row_tiles = operands.cuda_row_tiles();
  check(call, cudaMemsetAsync(scratch.look_back, 0, scratch.look_back_words * sizeof(uint64_t), stream));

  constexpr int kSplitThreads = 128;
  const int64_t splits = pair.rows * (row_tiles + 1);
  split_rows<<<ceil_div<int64_t>(splits, kSplitThreads), kSplitThreads, 0, stream>>>(
      tiles, operands.duplicates, row_tiles, P::kTile, scratch.splits);
  check_launch(call);

  const auto kernel = keep_items<Order, Payload>;
  constexpr size_t kSharedBytes = sizeof(Shared<P>);
  allow_shared(call, kernel, kSharedBytes);
  const int64_t all_tiles = pair.rows * row_tiles;
  const int64_t blocks =
      P::kBuffers == 1 ? all_tiles : resident_blocks(call, kernel, P::kThreads, kSharedBytes, all_tiles);
  launch_overlapping(
      call, stream, kernel, blocks, P::kThreads, kSharedBytes,
      P{tiles, operands.rule, operands.gives_indices, row_tiles, operands.size, scratch.splits, scratch.look_back,
        scratch.look_back + 1, operands.a_values, operands.b_values, static_cast<typename Order::Word*>(operands.keys),
        static_cast<Payload*>(operands.payload), operands.counts});

  fill<typename Order::Word>(call, operands, operands.keys, operands.fill, stream);
  if constexpr (P::kHasPayload) fill<Payload>(call, operands, operands.payload, operands.values_fill, stream);
}

template <typename Payload, typename Order>
void run_short_rows(const Call& call, const SetsOperands& operands, Order order, cudaStream_t stream) {
  const auto values = [](const SetsOperands::Rows& rows) {
    return ValueRows<Payload>{static_cast<const Payload*>(rows.data), rows.stride};
  };
  const short_rows::Sets<Order, Payload> problem{
      {operands.pair, order, operands.size},
      Divisor(operands.size),
      operands.rule,
      operands.gives_indices,
      {static_cast<const typename Order::Word*>(operands.fill.data), operands.fill.stride},
      values(operands.a_values),
      values(operands.b_values),
      values(operands.values_fill),
      static_cast<typename Order::Word*>(operands.keys),
      static_cast<Payload*>(operands.payload),
      operands.counts};
  launch_rows(call, stream, short_rows::keep_items<Order, Payload>, problem.rows.tiles, problem.shared_bytes(),
              problem);
}

}  // namespace set_operations

void list_sets_shapes(const Call& call, KernelShapeList& list) {
  using namespace set_operations;
  for_each_kind(call, "sets", {0, 4, 8}, [&](auto order, auto payload, const std::string& name) {
    constexpr int64_t kBytes = sizeof(Shared<Problem<decltype(order), decltype(payload)>>);
    list.push_back({name, {{kBytes, kBytes}}});
  });
}

void sets(const Call& call, cudaStream_t stream) {
  const SetsOperands operands(call);
  if (operands.pair.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    using Order = decltype(order);
    dispatch_payload(call, operands.payload_width, [&](auto payload) {
      using Payload = decltype(payload);
      ShortPair<Order>::fits(operands.pair, operands.size)
          ? set_operations::run_short_rows<Payload>(call, operands, order, stream)
          : set_operations::run<Payload>(call, operands, order, stream);
    });
  });
}

}  // namespace mgpu::cuda
