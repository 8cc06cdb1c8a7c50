#include "cuda/launch/launch.h"
#include "cuda/launch/shapes.h"
#include "ops/count_bins/many_bins.cuh"
#include "runtime/operations.h"

namespace mgpu::cuda {

namespace counting {

constexpr int64_t shared_bytes(int64_t bins_bytes, int64_t counters) {
  return bins_bytes + counters * sizeof(unsigned);
}

template <typename Bins>
void run(const Call& call, const CountBinsOperands& operands, const Bins& bins, cudaStream_t stream) {
  const auto kernel = count_parts<Bins>;
  // A block has up to a copy of the counters for each lane. Unless it has one copy, two blocks fit a multiprocessor,
  // and the copies have no more counters than a row has items.
  const int64_t max_bytes =
      maximum(shared_memory_limit(call) / 2 - 1024, shared_bytes(Bins::kSharedBytes, operands.bins));
  const int64_t min_part = maximum(kCountPart, 4 * operands.bins);
  int copies = kWarp;
  while (copies > 1 && (shared_bytes(Bins::kSharedBytes, operands.bins * copies) > max_bytes ||
                        operands.bins * copies > maximum(operands.length, operands.bins))) {
    copies /= 2;
  }
  const int64_t shared = shared_bytes(Bins::kSharedBytes, operands.bins * copies);
  allow_shared(call, kernel, shared);
  const int64_t max_parts = ceil_div(operands.length, min_part);
  const int blocks = resident_blocks(call, kernel, kThreads, shared, operands.rows * max_parts);
  const int64_t parts = clamp<int64_t>(blocks / operands.rows, 1, max_parts);
  kernel<<<operands.rows * parts, kThreads, shared, stream>>>(
      {operands, parts, ceil_div(operands.length, parts), copies}, bins);
  check_launch(call);
}

template <typename Item>
void run_many(const Call& call, const CountBinsOperands& operands, const NumberedBins<Item>& bins,
              cudaStream_t stream) {
  const auto kernel = count_many<Item>;
  const int64_t shared = kManyEntries * kManyEntryBytes;
  allow_shared(call, kernel, shared);
  const int64_t max_parts = ceil_div<int64_t>(operands.length, kManyEntries);
  const int blocks = resident_blocks(call, kernel, kManyThreads, shared, operands.rows * max_parts);
  const int64_t parts = clamp<int64_t>(blocks / operands.rows, 1, max_parts);
  kernel<<<static_cast<unsigned>(operands.rows * parts), kManyThreads, shared, stream>>>(
      {operands, parts, ceil_div(operands.length, parts), 1}, bins);
  check_launch(call);
}

template <typename Item>
void run_numbers(const Call& call, const CountBinsOperands& operands, cudaStream_t stream) {
  const NumberedBins<Item> bins{operands.bins};
  if (operands.bins > kMaxCountedBins) return run_many(call, operands, bins, stream);
  run(call, operands, bins, stream);
}

}  // namespace counting

void list_count_bins_shapes(const Call& call, KernelShapeList& list) {
  using namespace counting;
  for_each_kind(call, "counts between edges", {0}, [&](auto order, auto, const std::string& name) {
    const int64_t bytes = shared_bytes(BinsBetweenEdges<decltype(order)>::kSharedBytes, kMaxCountedEdges);
    list.push_back({name, {{bytes, bytes}}});
  });
}

void count_bins(const Call& call, cudaStream_t stream) {
  using namespace counting;
  const CountBinsOperands operands(call);
  if (operands.rows * operands.bins == 0) return;
  call.expect(operands.bins <= (operands.has_edges ? kMaxCountedEdges - 1 : kMaxNumberedBins),
              "counts: expected no more than the kernels take");
  const Array& counts = call.results[0];
  check(call, cudaMemsetAsync(counts.data, 0, counts.bytes(), stream));
  if (operands.length == 0) return;
  if (operands.has_edges) {
    return dispatch_order(call, operands.item_type, false,
                          [&](auto order) { run(call, operands, BinsBetweenEdges<decltype(order)>{order}, stream); });
  }
  if (operands.item_type == DType::s64) return run_numbers<int64_t>(call, operands, stream);
  run_numbers<int32_t>(call, operands, stream);
}

}  // namespace mgpu::cuda
