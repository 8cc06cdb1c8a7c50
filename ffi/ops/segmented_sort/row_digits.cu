#include "cuda/launch/overlapping.h"
#include "ops/segmented_sort/digit_sort.h"
#include "ops/segmented_sort/sort_rows_by_digits.cuh"

namespace mgpu::cuda::sorting {

namespace {

// Calls visit(problem) with the problem type for keys of `places`
// digits, if there is one, or with all types if `places` is 0.
template <typename Order, typename Payload, typename Visit>
void for_row_digits(int places, Visit visit) {
  constexpr int kWidth = sizeof(typename Order::Word);
  if constexpr (Order::kTotal || kWidth <= 2) {
    if (places <= 2) visit(RowDigitsProblem<Order, Payload>{});
  }
  if constexpr (kWidth > 2 && !std::is_same_v<Payload, NoPayload>) {
    if (places == 0 || places > 2) visit(RowRanksProblem<Order, Payload>{});
  }
}

}  // namespace

void sort_rows_by_digits(const Call& call, const SortPlan& plan, cudaStream_t stream) {
  const SegmentedSortOperands& operands = plan.operands();
  const Segments& segments = operands.segments;
  bool has_kernel = false;
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width, [&](auto payload) {
      for_row_digits<decltype(order), decltype(payload)>(plan.digit_places(), [&](auto problem) {
        using P = decltype(problem);
        using Word = typename P::Word;
        using Payload = typename P::Payload;
        const int threads = row_digit_threads(segments.length);
        const int groups = static_cast<int>(ceil_div<int64_t>(segments.length, threads));
        const int shared = row_digit_bytes(segments.length, P::kItemBytes, P::kLooksUp);
        const auto kernel = sorting::sort_rows_by_digits<P>;
        problem = {{order,
                    segments.length,
                    segments.counts,
                    plan.digit_places(),
                    groups,
                    {static_cast<const Word*>(operands.keys), static_cast<const Payload*>(operands.payload)},
                    {static_cast<Word*>(operands.sorted_keys), static_cast<Payload*>(operands.sorted_payload)}}};
        allow_shared(call, kernel, shared);
        kernel<<<static_cast<unsigned>(segments.rows), threads, shared, stream>>>(problem);
        check_launch(call);
        has_kernel = true;
      });
    });
  });
  call.expect(has_kernel, "keys: expected a type that blocks sort by digits");
}

void list_row_digit_shapes(const Call& call, KernelShapeList& list) {
  for_each_kind(call, "", {0, 4, 8}, [&](auto order, auto payload, const std::string& kind) {
    for_row_digits<decltype(order), decltype(payload)>(0, [&](auto problem) {
      using P = decltype(problem);
      const auto bytes = [](int groups) -> int64_t {
        return row_digit_bytes(kRowDigitThreads * groups, P::kItemBytes, P::kLooksUp) + kRowDigitStaticBytes;
      };
      const int64_t full = bytes(kRowDigitItems);
      if constexpr (P::kLooksUp) {  // ranks of half as many items fit smaller devices
        const int64_t half = bytes(kRowDigitItems / 2);
        list.push_back({"sort of rows by ranks" + kind, {{full, full}, {half, half}}, true});
      } else {
        list.push_back({"sort of rows by digits" + kind, {{full, full}}, true});
      }
    });
  });
}

}  // namespace mgpu::cuda::sorting
