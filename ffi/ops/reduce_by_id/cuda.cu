// Launches of reduce_by_id: the kernels of combine_by_id.cuh and kernels.cuh and,
// for sums of floats of up to 32 bits, those of sum_by_id.cuh and sum_by_digits.cuh.
#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce_by_id/combine_by_id.cuh"
#include "ops/reduce_by_id/kernels.cuh"
#include "ops/reduce_by_id/sum_by_digits.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace {

// For few results (kernels.cuh).
template <typename Operator>
void reduce_in_order(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands, Operator op) {
  using namespace id_reducing;
  using State = typename Operator::State;
  call.expect(operands.slots() * static_cast<int64_t>(sizeof(State)) <= kIdTableBytes, "size: too many results");
  Workspace workspace = workspace_of(call);
  IdReduction<Operator> reduction{static_cast<const typename Operator::Element*>(operands.x),
                                  operands.ids,
                                  operands.x_stride,
                                  operands.ids_stride,
                                  operands.segments,
                                  operands.width,
                                  operands.size,
                                  operands.slots(),
                                  operands.parts(),
                                  1,
                                  reinterpret_cast<State*>(operands.layout(workspace, call)),
                                  results_of<Operator>(operands)};
  const auto warps_in = [&](int64_t room) {
    return static_cast<int>(clamp<int64_t>(room / reduction.warp_bytes(), 1, kIdMaxWarps));
  };
  reduction.warps = warps_in(kIdPartBytes);
  const int turns = ceil_div(reduction.warps, warps_in(minimum(kIdPartBytes, shared_memory_limit(call))));
  const int warps = ceil_div(reduction.warps, turns);
  const int64_t bytes = warps * reduction.warp_bytes();
  const auto kernel = reduce_parts<Operator>;
  allow_shared(call, kernel, bytes);
  kernel<<<static_cast<unsigned>(operands.segments.rows * reduction.parts), warps * kWarp, bytes, stream>>>(reduction,
                                                                                                            op);
  check_launch(call);
  const int64_t blocks = operands.segments.rows * ceil_div<int64_t>(reduction.slots, kWarp);
  launch_overlapping(call, stream, combine_parts<Operator>, blocks, kCombineWarps * kWarp, 0, reduction, op);
}

// The blocks per problem: at most as many as fill the device, unless a block then had over kMaxPartItems items.
int64_t parts_of(const ReduceByIdOperands& operands, int64_t device_blocks, int64_t min_items) {
  const int64_t items = operands.segments.length * operands.width;
  const int64_t device_parts = maximum(device_blocks / operands.segments.rows, int64_t{1});
  return maximum(clamp(items / min_items, int64_t{1}, device_parts), ceil_div(items, id_combining::kMaxPartItems));
}

template <typename Operator>
id_combining::IdCombination<Operator> combination_of(const ReduceByIdOperands& operands,
                                                     typename Operator::State* states, ResultVector<Operator> result) {
  return {static_cast<const typename Operator::Element*>(operands.x),
          operands.ids,
          operands.x_stride,
          operands.ids_stride,
          operands.segments,
          Quotient(operands.width),
          operands.size,
          operands.slots(),
          1,
          0,
          states,
          result};
}

template <typename Kernel>
int64_t most_blocks(const Call& call, Kernel kernel, int64_t bytes, int threads = id_combining::kThreads) {
  allow_shared(call, kernel, bytes);
  return resident_blocks(call, kernel, threads, bytes, INT32_MAX);
}

// The number of entries of a table with tags: up to kMaxTaggedEntries, if they fit.
int tagged_entries(int64_t room, int64_t entry_bytes) {
  int entries = id_combining::kMaxTaggedEntries;
  while (entries * entry_bytes > room) entries /= 2;
  return entries;
}

unsigned blocks_of_slots(const ReduceByIdOperands& operands, int threads) {
  return static_cast<unsigned>(ceil_div<int64_t>(operands.segments.rows * operands.slots(), threads));
}

// The previous kernel has filled the states.
template <typename Operator>
void launch_combination(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands,
                        id_combining::IdCombination<Operator> combination, Operator op) {
  using namespace id_combining;
  constexpr int64_t kState = sizeof(typename Operator::State), kStep = kThreads * kInFlight;
  auto kernel = combine_items<false, Operator>;
  combination.entries = tagged_entries(shared_memory_limit(call), kState + 4);
  int64_t bytes = combination.entries * (kState + 4);
  combination.parts = parts_of(operands, most_blocks(call, kernel, bytes), kStep);
  if (whole_entries(combination.slots) * kState <= shared_memory_limit(call)) {
    const auto whole = combine_items<true, Operator>;
    const int64_t whole_bytes = whole_entries(combination.slots) * kState;
    const int64_t parts =
        parts_of(operands, most_blocks(call, whole, whole_bytes), maximum(kStep, 2 * combination.slots));
    // A table of all results is used unless that leaves less than an eighth of the blocks.
    if (8 * parts >= combination.parts) {
      kernel = whole, bytes = whole_bytes;
      combination.parts = parts;
      combination.entries = static_cast<int>(whole_entries(combination.slots));
    }
  }
  const auto blocks = static_cast<unsigned>(operands.segments.rows * combination.parts);
  launch_overlapping(call, stream, kernel, blocks, kThreads, bytes, combination, op);
}

template <typename Operator>
void combine_in_any_order(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands, Operator op) {
  using namespace id_combining;
  Workspace workspace = workspace_of(call);
  auto* const states = reinterpret_cast<typename Operator::State*>(operands.layout(workspace, call));
  const auto combination = combination_of<Operator>(operands, states, results_of<Operator>(operands));
  const unsigned blocks = blocks_of_slots(operands, kThreads);
  fill_states<<<blocks, kThreads, 0, stream>>>(combination, op);
  check_launch(call);
  launch_combination(call, stream, operands, combination, op);
  launch_overlapping(call, stream, finish_states<Operator>, blocks, kThreads, 0, combination, op);
}

template <typename Operator>
void launch_clear(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands,
                  const id_summing::IdSums<Operator>& sums, bool clears_all) {
  using namespace id_summing;
  const int64_t limbs = operands.segments.rows * (sums.sum.limbs() + 1) * operands.slots();
  const int blocks = resident_blocks(call, clear_limbs<Operator>, kThreads, 0, ceil_div<int64_t>(limbs, 2 * kThreads));
  if (clears_all) {
    clear_limbs<Operator><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(sums, true);
    return check_launch(call);
  }
  launch_overlapping(call, stream, clear_limbs<Operator>, static_cast<unsigned>(blocks), kThreads, 0, sums, false);
}

// Adds the items to limbs, by tables of digits (sum_by_digits.cuh). Returns false if a block has no room for a table.
template <typename Operator>
bool launch_digits(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands,
                   id_summing::IdSums<Operator> sums) {
  using namespace id_summing;
  const auto kernel = add_digits<Operator>;
  cudaFuncAttributes attributes;
  check(call, cudaFuncGetAttributes(&attributes, kernel));
  constexpr int64_t kOthers = kOtherEntries * kSumEntryBytes, kCopyWords = kMaxCopies * sizeof(uint32_t);
  const int64_t group_bytes = whole_entries(operands.slots()) * kGroupWords * sizeof(uint32_t);
  const int64_t room = shared_memory_limit(call) - static_cast<int64_t>(attributes.sharedSizeBytes);
  const int64_t groups =
      clamp<int64_t>((room - kOthers - kCopyWords) / group_bytes, 0, ExponentWindow::kMaxGroups * int64_t{kMaxCopies});
  if (groups == 0) return false;
  sums.table_slots = static_cast<unsigned>(whole_entries(operands.slots()));
  sums.table_groups = static_cast<unsigned>(groups);
  sums.items.entries = tagged_entries(room, kSumEntryBytes);  // of blocks that use no digits
  const int64_t bytes = maximum(kOthers + kCopyWords + groups * group_bytes, sums.items.entries * kSumEntryBytes);
  const int64_t min_items = maximum<int64_t>(2 * kInFlight * kThreads, 4 * operands.slots());
  sums.items.parts = maximum(parts_of(operands, most_blocks(call, kernel, bytes), min_items),
                             ceil_div(operands.segments.length, kMaxDigitRows));
  const auto blocks = static_cast<unsigned>(operands.segments.rows * sums.items.parts);
  launch_clear(call, stream, operands, sums, true);
  launch_overlapping(call, stream, kernel, blocks, kThreads, bytes, sums);
  return true;
}

__global__ void clear_mask(unsigned long long* mask) {
  start_next_kernel();
  *mask = 0;
}

// Adds the items to limbs in device memory.
template <typename Operator>
void launch_limbs(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands,
                  id_summing::IdSums<Operator> sums) {
  using namespace id_summing;
  const int64_t problems = operands.segments.rows, slots = problems * operands.slots();
  const int64_t problem_items = operands.segments.length * operands.width, items = problems * problem_items;
  const int64_t count = operands.x_stride == 0 ? problem_items : items;
  const bool clears_all = slots * (sums.sum.limbs() + 1) <= maximum(kMaxClearedLimbs, count);
  if (!clears_all) {
    clear_mask<<<1, 1, 0, stream>>>(sums.mask);
    check_launch(call);
    const int blocks = resident_blocks(call, find_limbs<Operator>, kThreads, 0, ceil_div<int64_t>(count, kThreads));
    launch_overlapping(call, stream, find_limbs<Operator>, static_cast<unsigned>(blocks), kThreads, 0, sums, count);
  }
  launch_clear(call, stream, operands, sums, clears_all);
  const auto kernel = sum_items<Operator>;
  const bool are_spread = items <= minimum(kMaxSpreadItems, kSpreadItemsPerSlot * slots);
  const int threads = are_spread ? kSpreadThreads : kThreads;
  sums.items.entries = are_spread ? 4 * threads : tagged_entries(shared_memory_limit(call), kSumEntryBytes);
  const int64_t bytes = sums.items.entries * kSumEntryBytes, min_items = are_spread ? kInFlight * threads : kThreads;
  sums.items.parts = parts_of(operands, most_blocks(call, kernel, bytes, threads), min_items);
  const auto blocks = static_cast<unsigned>(problems * sums.items.parts);
  launch_overlapping(call, stream, kernel, blocks, threads, bytes, sums);
}

// Adds few floats up exactly, in one launch. Returns false if kSumRanges blocks have no room for all limbs.
template <typename Operator>
bool sum_in_ranges(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands,
                   id_summing::IdSums<Operator> sums, Operator op) {
  using namespace id_summing;
  const int64_t items = operands.segments.length * operands.width, problems = operands.segments.rows;
  const int64_t id_bytes = operands.width * (sums.sum.limbs() + 1) * int64_t{sizeof(uint64_t)};
  const int64_t list_bytes = operands.segments.length * int64_t{sizeof(uint32_t)};
  const int64_t room = maximum<int64_t>(shared_memory_limit(call) - list_bytes - kLineBytes, 0) / id_bytes;
  if (room == 0) return false;
  const int64_t wished = clamp<int64_t>(multiprocessors(call) / problems, 1, kSumRanges / 2);
  sums.range_ids = static_cast<unsigned>(minimum(room, ceil_div(operands.size, wished)));
  const int64_t ranges = ceil_div<int64_t>(operands.size, sums.range_ids);
  if (ranges > kSumRanges) return false;
  const bool lists = items == 0 || items > int64_t{kThreads} * kAtOnce;
  const auto kernel = lists ? sum_ranges<true, Operator> : sum_ranges<false, Operator>;
  const int64_t bytes = sums.range_ids * id_bytes + list_bytes;
  const int64_t warps = clamp<int64_t>(ceil_div<int64_t>(items, (lists ? kListedIds : kAtOnce) * kWarp), 1, kWarp);
  allow_shared(call, kernel, bytes);
  const dim3 grid(static_cast<unsigned>(problems), static_cast<unsigned>(ranges));
  kernel<<<grid, static_cast<unsigned>(warps * kWarp), bytes, stream>>>(sums, op);
  check_launch(call);
  return true;
}

// Adds floats up exactly.
template <typename Operator>
void sum_exactly(const Call& call, cudaStream_t stream, const ReduceByIdOperands& operands, Operator op) {
  using namespace id_summing;
  const int64_t slots = operands.slots(), problems = operands.segments.rows;
  const ExactSum sum(operands.segments.length);
  const int64_t limbs = slots * (sum.limbs() + 1);
  call.expect(limbs < int64_t{1} << 32, "size: too many results");
  call.expect(sum.limbs() < 64, "x: too many rows");
  Workspace workspace = workspace_of(call);
  auto* const words = reinterpret_cast<uint64_t*>(operands.layout(workspace, call));
  IdSums<Operator> sums{combination_of<LimbOf<typename Operator::Element>>(operands, words, {}), sum,
                        reinterpret_cast<unsigned long long*>(words + problems * limbs),
                        results_of<Operator>(operands)};
  if (operands.sums_few() && sum_in_ranges(call, stream, operands, sums, op)) return;
  if (!(operands.sums_many() && launch_digits(call, stream, operands, sums))) {
    launch_limbs(call, stream, operands, sums);
  }
  launch_overlapping(call, stream, finish_sums<Operator>, blocks_of_slots(operands, kFinishThreads), kFinishThreads, 0,
                     sums, op);
}

}  // namespace

void reduce_by_id(const Call& call, cudaStream_t stream) {
  const ReduceByIdOperands operands(call);
  if (operands.segments.rows * operands.slots() == 0) return;
  operands.dispatch_reduction<true>(call, [&](auto op) {
    using Operator = decltype(op);
    if constexpr (has_integer_state<Operator>()) {
      if (operands.in_any_order(call)) return combine_in_any_order(call, stream, operands, op);
    }
    if constexpr (std::is_same_v<typename Operator::State, float>) {
      if (operands.sums_exactly()) return sum_exactly(call, stream, operands, op);
    }
    reduce_in_order(call, stream, operands, op);
  });
}

}  // namespace mgpu::cuda
