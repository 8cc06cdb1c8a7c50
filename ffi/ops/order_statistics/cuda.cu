#include "cuda/launch/launch.h"
#include "cuda/launch/shapes.h"
#include "ops/order_statistics/kernels.cuh"
#include "ops/order_statistics/sampled_intervals.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace ranking {

template <typename Order>
void find_between(const Call& call, RanksTask<Order> task, cudaStream_t stream) {
  find_intervals<Order><<<task.operands.rows, kRankThreads, 0, stream>>>(task);
  check_launch(call);
  const auto kernel = gather_between<Order>;
  const int blocks = resident_blocks(call, kernel, kRankThreads, 0, INT32_MAX);
  task.parts = maximum<int64_t>(1, blocks / task.operands.rows);
  task.part = ceil_div(task.operands.length, task.parts);
  kernel<<<task.operands.rows * task.parts, kRankThreads, 0, stream>>>(task);
  check_launch(call);
}

template <typename Order>
void run(const Call& call, const OrderStatisticsOperands& operands, Order order, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const OrderStatisticsOperands::Scratch scratch = operands.layout(workspace);
  check(call, cudaMemsetAsync(scratch.prefixes, 0, scratch.bytes, stream));
  const auto kernel = count_rank_digits<Order>;
  constexpr int64_t kCounterBytes = RowDigits<Order>::kCounterBytes;
  allow_shared(call, kernel, kCounterBytes);
  const int64_t max_parts = maximum<int64_t>(1, ceil_div(operands.length, kRankPart));
  const int blocks = resident_blocks(call, kernel, kRankThreads, kCounterBytes, operands.rows * max_parts);
  const int64_t parts = clamp<int64_t>(blocks / operands.rows, 1, max_parts);
  const RanksTask<Order> task{operands, scratch, order, {}, parts, ceil_div(operands.length, parts)};
  if (operands.takes_sample()) find_between(call, task, stream);
  for (int shift = 8 * sizeof(typename Order::Word); shift > 0;) {
    const int digit_bits = minimum(shift, kRankDigitBits);
    const bool is_first = shift == 8 * sizeof(typename Order::Word);
    shift -= digit_bits;
    kernel<<<operands.rows * parts, kRankThreads, kCounterBytes, stream>>>(
        {operands, scratch, order, {shift, digit_bits, is_first}, parts, task.part});
    check_launch(call);
  }
}

}  // namespace ranking

void list_order_statistics_shapes(const Call& call, KernelShapeList& list) {
  for_each_kind(call, "digits of ranks", {0}, [&](auto order, auto, const std::string& name) {
    constexpr int64_t kBytes =
        ranking::RowDigits<decltype(order)>::kCounterBytes + 1024;  // leaves room for static memory
    list.push_back({name, {{kBytes, kBytes}}});
  });
}

void order_statistics(const Call& call, cudaStream_t stream) {
  const OrderStatisticsOperands operands(call);
  if (operands.rows * operands.rank_count == 0) return;
  call.expect(operands.rank_count <= kMaxRanks, "ranks: expected no more than the kernels take");
  dispatch_order(call, operands.key_type, false, [&](auto order) { ranking::run(call, operands, order, stream); });
}

}  // namespace mgpu::cuda
