#include "cuda/launch/overlapping.h"
#include "cuda/launch/shapes.h"
#include "ops/top_k/kernels.cuh"
#include "ops/top_k/short_rows.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace ranking {

template <bool kIsFirst, int kThreads, typename Order>
void launch(const Call& call, const TopKTask<Order>& task, cudaStream_t stream) {
  const auto kernel = keep_best_k<Order, kIsFirst, kThreads>;
  constexpr int kShared = sizeof(TopKShared<typename Order::Word, kThreads>);
  allow_shared(call, kernel, kShared);
  const auto blocks = static_cast<unsigned>(task.operands.rows * task.parts());
  if constexpr (kIsFirst) {
    kernel<<<blocks, kThreads, kShared, stream>>>(task);
    check_launch(call);
  } else {
    launch_overlapping(call, stream, kernel, blocks, kThreads, kShared, task);
  }
}

template <typename Order>
void run(const Call& call, const TopKOperands& operands, Order order, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const TopKOperands::Scratch scratch = operands.layout(workspace);
  TopKTask<Order> task{operands, order, operands.levels(), 0, {}, {}, scratch.counts};
  if (const int64_t lists = (task.levels.count - 1) * operands.rows; lists > 0) {
    check(call, cudaMemsetAsync(scratch.counts, 0, lists * sizeof(uint32_t), stream));
  }
  for (; task.level < task.levels.count; ++task.level) {
    task.source = scratch.kept[(task.level + 1) % 2];
    task.target = scratch.kept[task.level % 2];
    if (task.level > 0) {
      launch<false, kTopKThreads>(call, task, stream);
    } else if (operands.rows * task.parts() > kTopKBlocks * multiprocessors(call)) {
      launch<true, kTopKManyThreads>(call, task, stream);
    } else {
      launch<true, kTopKThreads>(call, task, stream);
    }
  }
}

template <int kShape, typename Order>
void run_short(const Call& call, const short_rows::TopK<Order>& task, cudaStream_t stream) {
  constexpr TopKRowShape shape = kTopKRowShapes[kShape];
  if constexpr (kShape + 1 < kTopKRowShapeCount) {
    if (!shape.takes(task.operands.length, task.operands.k)) return run_short<kShape + 1>(call, task, stream);
  }
  constexpr int64_t kBlockRows = kTopKRowThreads / shape.lanes;
  const int64_t blocks = ceil_div(task.operands.rows, kBlockRows);
  short_rows::keep_best_k_of_rows<Order, kShape><<<static_cast<unsigned>(blocks), kTopKRowThreads, 0, stream>>>(task);
  check_launch(call);
}

}  // namespace ranking

void list_top_k_shapes(const Call& call, KernelShapeList& list) {
  for_each_kind(call, "first items", {0}, [&](auto order, auto, const std::string& name) {
    constexpr int64_t kBytes = sizeof(ranking::TopKShared<typename decltype(order)::Word, kTopKThreads>);
    list.push_back({name, {{kBytes, kBytes}}});
  });
}

void top_k(const Call& call, cudaStream_t stream) {
  const TopKOperands operands(call);
  if (operands.rows * operands.k == 0) return;
  if (kTopKRowLargest.takes(operands.length, operands.k)) {
    dispatch_order(call, operands.key_type, operands.largest, [&](auto order) {
      ranking::run_short<0>(call, short_rows::TopK<decltype(order)>{operands, order, is_aligned(operands.x)}, stream);
    });
    return;
  }
  if (operands.k > kTopKMaxK) call.fail("k: expected at most " + std::to_string(kTopKMaxK));
  call.expect(operands.length <= kTopKMaxLength, "x: expected rows of fewer than 2^32 items");
  dispatch_order(call, operands.key_type, operands.largest,
                 [&](auto order) { ranking::run(call, operands, order, stream); });
}

}  // namespace mgpu::cuda
