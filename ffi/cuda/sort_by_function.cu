// Sorts by compiled functions on CUDA: the kernels of segmented_sort for segments, compiled for one order each.
#include "cuda/compiler.h"
#include "cuda/launch.h"
#include "cuda/segmented_sort/describe_tiles.cuh"
#include "cuda/segmented_sort/merge_tiles.cuh"
#include "cuda/segmented_sort/plan_tiles.cuh"
#include "cuda/segmented_sort/sort_tiles.cuh"
#include "operands/sort_by_function.h"
#include "operations.h"
#include "workspace.h"

namespace mgpu::cuda {

namespace {

using namespace sorting;

// What the host knows of an order: how wide its words are, so that the parameters of kernels are laid out alike.
template <typename Word_>
struct AnyOrder {
  using Word = Word_;
  Captures captures;
};

template <typename... Parameters>
void launch(Kernel kernel, int64_t blocks, int threads, int64_t shared, CUstream_st* stream,
            const Parameters&... parameters) {
  launch_kernel(kernel, blocks, threads, shared, stream, {const_cast<Parameters*>(&parameters)...});
}

enum { kSort, kPlan, kMerge };

const std::vector<Kernel>& sort_kernels(std::string_view source, int64_t word_bytes, bool has_payload, int device) {
  const std::string of = "<mgpu::FunctionOrder<mgpu::function::Function, uint" + std::to_string(8 * word_bytes) +
                         "_t>, " + (has_payload ? "uint32_t" : "mgpu::NoPayload") + ">";
  std::vector<std::string> names;
  for (const char* kernel : {"sort_tiles", "plan_tiles", "merge_tiles"}) {
    names.push_back(std::string("mgpu::cuda::sorting::") + kernel + of);
  }
  return kernels_of(source, "cuda/segmented_sort/by_function.cuh", names, device);
}

template <typename Order, typename Payload>
Buffer<Order, Payload> buffer(const void* keys, const void* payload) {
  return {static_cast<typename Order::Word*>(const_cast<void*>(keys)),
          static_cast<Payload*>(const_cast<void*>(payload))};
}

template <typename Word, typename Payload>
void run(const Call& call, const SortFunctionOperands& operands, std::string_view source, CUstream_st* stream) {
  using Order = AnyOrder<Word>;
  using P = Problem<Order, Payload>;
  const SegmentedSortOperands& sort = operands.sort;
  const auto& kernels = sort_kernels(source, sizeof(Word), P::kHasPayload, current_device());
  Workspace workspace = workspace_of(call);
  const SegmentedSortOperands::Scratch scratch = sort.layout(workspace);
  const P problem{{operands.captures},
                  sort.segments,
                  sort.segments.total(),
                  ceil_div<int64_t>(sort.segments.total(), P::kTile),
                  buffer<Order, Payload>(sort.keys, nullptr),
                  {buffer<Order, Payload>(sort.sorted_keys, sort.sorted_payload),
                   buffer<Order, Payload>(scratch.keys, scratch.payload)},
                  scratch.tiles,
                  scratch.rounds,
                  scratch.plans,
                  scratch.rounds + 1};

  check(call, cudaMemsetAsync(scratch.rounds, 0, SegmentedSortOperands::kCounters * sizeof(int), stream));
  constexpr int kDescribeThreads = 128;
  const int64_t describe_blocks = ceil_div<int64_t>(problem.tiles + 1, kDescribeThreads / kWarp);
  if (sort.segments.has_flags()) {
    find_tile_heads<<<describe_blocks, kDescribeThreads, 0, stream>>>(sort.segments, problem.tiles, P::kTile,
                                                                      problem.descriptors);
    check_launch(call);
    connect_tiles<512>
        <<<1, 512, 0, stream>>>(problem.total, problem.tiles, P::kTile, problem.descriptors, problem.rounds);
  } else {
    describe_tiles<<<describe_blocks, kDescribeThreads, 0, stream>>>(sort.segments, problem.tiles, P::kTile,
                                                                     problem.descriptors, problem.rounds);
  }
  check_launch(call);
  launch(kernels[kSort], problem.tiles, P::kShape.threads, sizeof(SortShared<Order, Payload>), stream, problem);
  // A segment lies within a row: no more rounds than the tiles that a row can touch need.
  const int64_t row_tiles = minimum(problem.tiles, ceil_div<int64_t>(sort.segments.length, P::kTile) + 1);
  const int most_rounds = group_rounds<int64_t>({0, row_tiles}, 1);
  const int64_t plan_blocks = ceil_div<int64_t>(problem.tiles, kPlanTiles);
  constexpr int64_t kMergeShared = sizeof(MergeShared<Order, Payload>);
  const int merge_blocks = resident_kernel_blocks(kernels[kMerge], P::kShape.threads, kMergeShared, problem.tiles);
  for (int round = 0; round < most_rounds; ++round) {
    launch(kernels[kPlan], plan_blocks, kPlanThreads, 0, stream, problem, round);
    launch(kernels[kMerge], merge_blocks, P::kShape.threads, kMergeShared, stream, problem, round);
  }
}

template <typename Word>
void run_words(const Call& call, const SortFunctionOperands& operands, std::string_view source, CUstream_st* stream) {
  if (operands.sort.payload_mode == PayloadMode::kNone) {
    run<Word, NoPayload>(call, operands, source, stream);
  } else {
    run<Word, uint32_t>(call, operands, source, stream);
  }
}

}  // namespace

void prepare_sort_by_function(const Attributes& attributes, std::string_view source) {
  const bool has_payload = attributes["payload"] != static_cast<int64_t>(PayloadMode::kNone);
  for (const int device : distinct_devices()) sort_kernels(source, attributes["word_bytes"], has_payload, device);
}

void sort_by_function(const Call& call, std::string_view source, CUstream_st* stream) {
  const SortFunctionOperands operands(call);
  if (operands.sort.segments.total() == 0) return;
  switch (byte_width(operands.sort.key_type)) {
    case 1: return run_words<uint8_t>(call, operands, source, stream);
    case 2: return run_words<uint16_t>(call, operands, source, stream);
    case 4: return run_words<uint32_t>(call, operands, source, stream);
    default: return run_words<uint64_t>(call, operands, source, stream);
  }
}

}  // namespace mgpu::cuda
