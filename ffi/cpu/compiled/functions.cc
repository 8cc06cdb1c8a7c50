// reduce, segmented_reduce, scan and sorts by compiled functions on the CPU: the kernels of reduce.h, scan.h and
// segmented_sort.h, compiled for one function each.
#include "operands/functions.h"

#include "cpu/compiled/compiler.h"
#include "cpu/executor.h"
#include "cpu/reduce.h"
#include "cpu/scan.h"
#include "cpu/segmented_sort.h"
#include "operands/function_data.h"
#include "operands/sort_by_function.h"
#include "operations.h"

namespace mgpu::cpu {

namespace {

void run(CompiledKernel kernel, const void* problem, Executor& executor) {
  const LentThreads lent{&executor, executor.concurrency(),
                         [](void* executor, int64_t count, void (*body)(const void*, int64_t), const void* context) {
                           run_tasks(*static_cast<Executor*>(executor), count, body, context);
                         }};
  if (const char* const error = kernel(problem, &lent)) throw std::runtime_error(error);
}

// `flags`: template arguments that follow the operator.
CompiledKernel operator_kernel(std::string_view source, std::string_view header, std::string_view kernel,
                               std::string_view flags = "") {
  const auto after = [&](std::string operator_name) { return operator_name.append(flags); };
  return kernel_of(source, header, kernel, after("mgpu::FunctionOperator<mgpu::function::Function>"),
                   after("mgpu::AnyOperator"));
}

template <bool kSegmented>
CompiledKernel reduce_kernel(std::string_view source) {
  return operator_kernel(source, "cpu/reduce.h", "ReduceProblem", kSegmented ? ", true" : ", false");
}

template <bool kSegmented, typename Operands>
void run_reduce(const Operands& operands, std::string_view source, Executor& executor) {
  const ReduceProblem<AnyOperator, kSegmented> problem{operands.sources(), operands.segments,
                                                       FunctionOperands::targets(operands.result), operands.op()};
  run(reduce_kernel<kSegmented>(source), &problem, executor);
}

CompiledKernel scan_kernel(std::string_view source) { return operator_kernel(source, "cpu/scan.h", "ScanProblem"); }

CompiledKernel sort_kernel(std::string_view source, int64_t word_bytes, bool has_payload) {
  const std::string word = word_type(word_bytes);
  const std::string payload = has_payload ? ", uint32_t" : ", mgpu::NoPayload";
  return kernel_of(source, "cpu/segmented_sort.h", "SortProblem",
                   "mgpu::FunctionOrder<mgpu::function::Function, " + word + ">" + payload,
                   "mgpu::AnyOrder<" + word + ">" + payload);
}

}  // namespace

void prepare_reduce_by_function(const Attributes&, const FunctionData& function) {
  reduce_kernel<false>(function.source);
}

void reduce_by_function(const Call& call, Executor& executor) {
  run_reduce<false>(ReduceFunctionOperands(call), call.function->source, executor);
}

void prepare_segmented_reduce_by_function(const Attributes&, const FunctionData& function) {
  reduce_kernel<true>(function.source);
}

void segmented_reduce_by_function(const Call& call, Executor& executor) {
  run_reduce<true>(SegmentedReduceFunctionOperands(call), call.function->source, executor);
}

void prepare_scan_by_function(const Attributes&, const FunctionData& function) { scan_kernel(function.source); }

void scan_by_function(const Call& call, Executor& executor) {
  const ScanFunctionOperands operands(call);
  if (operands.segments.total() == 0) return;  // a total over no items is the caller's
  const ScanProblem<AnyOperator> problem{operands.sources(),
                                         operands.segments,
                                         operands.exclusive,
                                         operands.reverse,
                                         FunctionOperands::targets(operands.result),
                                         FunctionOperands::targets(operands.totals),
                                         operands.op()};
  run(scan_kernel(call.function->source), &problem, executor);
}

void prepare_sort_by_function(const Attributes& attributes, const FunctionData& function) {
  sort_kernel(function.source, attributes["word_bytes"],
              attributes["payload"] != static_cast<int64_t>(PayloadMode::kNone));
}

void sort_by_function(const Call& call, Executor& executor) {
  const SortFunctionOperands operands(call);
  const SegmentedSortOperands& sort = operands.sort;
  if (sort.segments.total() == 0) return;
  const auto run_sort = [&]<typename Payload>(Payload) {
    using Order = AnyOrder<uint32_t>;  // words of all widths lie alike in a problem, which has their addresses alone
    const SortProblem<Order, Payload> problem{
        sort.segments,
        {Order{operands.captures}, sort.keys, nullptr, sort.index_row_length()},
        {Order{operands.captures}, sort.sorted_keys, sort.sorted_payload},
    };
    constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
    run(sort_kernel(call.function->source, byte_width(sort.key_type), kHasPayload), &problem, executor);
  };
  sort.payload_mode == PayloadMode::kNone ? run_sort(NoPayload{}) : run_sort(uint32_t{});
}

}  // namespace mgpu::cpu
