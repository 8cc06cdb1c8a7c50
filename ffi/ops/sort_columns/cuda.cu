// sort_columns on CUDA: whole rows by the digits of both columns.
#include "cuda/launch/shapes.h"
#include "ops/segmented_sort/launch_digits.h"
#include "ops/sort_columns/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace sorting {

template <typename P>
void run_columns(const Call& call, const SortColumnsPlan& plan, cudaStream_t stream) {
  using Payload = typename P::Payload;
  const SortColumnsOperands& operands = plan.operands;
  Workspace workspace = workspace_of(call);
  const SortColumnsScratch scratch = plan.layout(workspace);
  const auto payload = [](const void* of) { return static_cast<Payload*>(const_cast<void*>(of)); };
  P problem{};
  problem.order = operands.order;
  problem.length = operands.length;
  problem.rows = operands.rows;
  problem.counts = operands.counts;
  problem.places = SortColumnsPlan::kPlaces;
  problem.row_tiles = ceil_div<int64_t>(operands.length, P::kTile);
  problem.input = {nullptr, payload(operands.payload)};
  problem.buffers[P::kOutput] = {nullptr, payload(operands.sorted_payload)};
  problem.buffers[P::kScratch] = {scratch.words, payload(scratch.payload)};
  problem.sums = static_cast<uint32_t*>(scratch.digits.sums);
  problem.starts = static_cast<uint32_t*>(scratch.digits.starts);
  problem.tickets = scratch.digits.tickets;
  problem.counted = scratch.digits.counted;
  problem.taken = scratch.digits.taken;
  problem.input_columns = {operands.high, operands.low};
  problem.sorted_columns = {operands.sorted_high, operands.sorted_low};
  problem.apart = scratch.words + operands.total();
  check(call, cudaMemsetAsync(scratch.digits.tickets, 0, scratch.digits.zeroed_bytes, stream));
  launch_count(call, problem, stream);
  launch_scatters(call, problem, problem.rows * problem.row_tiles, stream);
}

}  // namespace sorting

void list_sort_columns_shapes(const Call& call, KernelShapeList& list) {
  using namespace sorting;
  for (int width : {0, 4, 8}) {
    dispatch_payload(call, width, [&](auto payload) {
      using Payload = decltype(payload);
      constexpr int64_t kLarge = most_shared_bytes<ColumnProblem<Payload, false>>();
      constexpr int64_t kSmall = most_shared_bytes<ColumnProblem<Payload, true>>();
      list.push_back({"sort of columns, payload of " + std::to_string(width), {{kLarge, kLarge}, {kSmall, kSmall}}});
    });
  }
}

void sort_columns(const Call& call, cudaStream_t stream) {
  using namespace sorting;
  const SortColumnsOperands operands(call);
  if (operands.total() == 0) return;
  const SortColumnsPlan plan(operands, device_traits(call));
  dispatch_payload(call, operands.payload_width, [&](auto payload) {
    using Payload = decltype(payload);
    using Large = ColumnProblem<Payload, false>;
    using Small = ColumnProblem<Payload, true>;
    constexpr int kPayloadWidth = Large::kHasPayload ? sizeof(Payload) : 0;
    static_assert(most_shared_bytes<Large>() <= SortColumnsPlan::shared_bytes(kPayloadWidth));
    plan.is_small ? run_columns<Small>(call, plan, stream) : run_columns<Large>(call, plan, stream);
  });
}

}  // namespace mgpu::cuda
