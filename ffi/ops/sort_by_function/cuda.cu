// Sorts by compiled functions on CUDA use the kernels of segmented_sort for segments, compiled for each order.
#include <algorithm>
#include <iterator>

#include "function/order.h"
#include "jit/compiler.h"
#include "jit/function_data.h"
#include "ops/segmented_sort/merge_tiles.cuh"
#include "ops/segmented_sort/plan.h"
#include "ops/segmented_sort/sort_segments.h"
#include "ops/segmented_sort/sort_tiles.cuh"
#include "ops/sort_by_function/operands.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace {

using namespace sorting;

template <typename... Parameters>
void launch(Kernel kernel, int64_t blocks, int threads, int64_t shared, CUstream_st* stream,
            const Parameters&... parameters) {
  launch_kernel(kernel, blocks, threads, shared, stream, {const_cast<Parameters*>(&parameters)...});
}

enum { kSort, kPlan, kMerge };

const std::vector<Kernel>& kernels_by(const std::string& order, bool has_payload, std::string_view source, int device) {
  std::vector<std::string> names;
  for (const char* kernel : {"sort_tiles", "plan_tiles", "merge_tiles"}) {
    names.push_back(std::string("mgpu::cuda::sorting::") + kernel + "<" + order + ", " +
                    (has_payload ? "uint32_t" : "mgpu::NoPayload") + ">");
  }
  return kernels_of(source, "ops/sort_by_function/kernels.cuh", names, device);
}
const std::vector<Kernel>& sort_kernels(std::string_view source, int64_t word_bytes, bool has_payload, int device) {
  const std::string order = "mgpu::FunctionOrder<mgpu::function::Function, " + word_type(word_bytes) + ">";
  return kernels_by(order, has_payload, source, device);
}
const std::vector<Kernel>& index_kernels(std::string_view source, int device) {
  return kernels_by("mgpu::FunctionIndexOrder<mgpu::function::Function>", false, source, device);
}

template <typename Order, typename Payload>
struct SegmentKernels {
  using P = Problem<Order, Payload>;
  static constexpr int64_t kMergeShared = sizeof(MergeShared<Order, Payload>);
  static_assert(kMergeShared <= 64 << 10, "every device grants a block that much shared memory");
  const std::vector<Kernel>& kernels;
  CUstream_st* stream;

  void sort(const P& problem) const {
    launch(kernels[kSort], problem.tiles, P::kShape.threads, sizeof(SortShared<Order, Payload>), stream, problem);
  }
  int merge_blocks(int64_t tiles) const {
    return resident_kernel_blocks(kernels[kMerge], P::kShape.threads, kMergeShared, tiles);
  }
  void plan(const P& problem, int64_t blocks, int round) const {
    launch(kernels[kPlan], blocks, kPlanThreads, 0, stream, problem, round);
  }
  void merge(const P& problem, int blocks, int round) const {
    launch(kernels[kMerge], blocks, P::kShape.threads, kMergeShared, stream, problem, round);
  }
};

template <typename Word, typename Payload>
void run(const Call& call, const SortFunctionOperands& operands, CUstream_st* stream) {
  using Order = AnyOrder<Word>;
  constexpr bool kHasPayload = Problem<Order, Payload>::kHasPayload;
  const SegmentKernels<Order, Payload> kernels{
      sort_kernels(call.function->source, sizeof(Word), kHasPayload, current_device()), stream};
  const SortPlan plan(operands.sort, SortVariant::kSegments);
  Workspace workspace = workspace_of(call);
  sort_segments<Order, Payload>(call, plan, plan.layout(workspace), Order{operands.captures}, stream, kernels);
}

template <typename Word>
void run_words(const Call& call, const SortFunctionOperands& operands, CUstream_st* stream) {
  if (operands.sort.payload_mode == PayloadMode::kNone) {
    run<Word, NoPayload>(call, operands, stream);
  } else {
    run<Word, uint32_t>(call, operands, stream);
  }
}

}  // namespace

void prepare_sort_by_function(const Attributes& attributes, const FunctionData& function) {
  const bool has_payload = attributes["payload"] != static_cast<int64_t>(PayloadMode::kNone);
  for (const int device : distinct_devices())
    sort_kernels(function.source, attributes["word_bytes"], has_payload, device);
}

void sort_by_function(const Call& call, CUstream_st* stream) {
  const SortFunctionOperands operands(call);
  if (operands.sort.segments.total() == 0) return;
  switch (byte_width(operands.sort.key_type)) {
    case 1: return run_words<uint8_t>(call, operands, stream);
    case 2: return run_words<uint16_t>(call, operands, stream);
    case 4: return run_words<uint32_t>(call, operands, stream);
    case 8: return run_words<uint64_t>(call, operands, stream);
    default: return run_words<unsigned __int128>(call, operands, stream);
  }
}

void prepare_sort_indices_by_function(const Attributes&, const FunctionData& function) {
  for (const int device : distinct_devices()) index_kernels(function.source, device);
}

void sort_indices_by_function(const Call& call, CUstream_st* stream) {
  const SortIndicesFunctionOperands operands(call);
  const Segments& segments = operands.sort.segments;
  if (segments.total() == 0) return;
  AnyIndexOrder order{};
  std::copy(std::begin(operands.leaves), std::end(operands.leaves), order.items.leaves);
  order.captures = operands.captures;
  order.length = static_cast<uint32_t>(segments.length);
  order.last = static_cast<uint32_t>(segments.total() - 1);
  const SegmentKernels<AnyIndexOrder, NoPayload> kernels{index_kernels(call.function->source, current_device()),
                                                         stream};
  const SortPlan plan(operands.sort, SortVariant::kSegments);
  Workspace workspace = workspace_of(call);
  sort_segments<AnyIndexOrder, NoPayload>(call, plan, plan.layout(workspace), order, stream, kernels);
}

}  // namespace mgpu::cuda
