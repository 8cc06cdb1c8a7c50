// The radix sorts of whole rows and of segments.
#include "ops/segmented_sort/digit_sort.h"
#include "ops/segmented_sort/fill_digits.cuh"
#include "ops/segmented_sort/launch_digits.h"
#include "ops/segmented_sort/list_segments.cuh"

namespace mgpu::cuda::sorting {

namespace {

template <typename P>
void launch_list(const Call& call, const P& problem, const SortPlan& plan, const SortScratch& scratch,
                 cudaStream_t stream) {
  const SegmentedSortOperands& operands = plan.operands();
  const DigitCounts& counts = scratch.digits;
  if (plan.variant() == SortVariant::kLongSegments) {
    constexpr int kThreads = 256;
    const int tile_width = tile_items(sizeof(typename P::Word));
    const int64_t tiles = ceil_div<int64_t>(operands.segments.total(), tile_width);
    launch_overlapping(call, stream, list_long_segments<P>, ceil_div<int64_t>(tiles, kThreads / kWarp), kThreads, 0,
                       problem, operands.segments, scratch.tiles, tiles, tile_width, counts.segments, counts.totals);
  } else {
    constexpr int kThreads = 1024;
    list_segments<kThreads><<<1, kThreads, 0, stream>>>(operands.segments, P::kTile, counts.segments, counts.totals);
    check_launch(call);
  }
}

template <typename P>
void launch_count_of_segments(const Call& call, const P& problem, int64_t max_tiles, cudaStream_t stream) {
  const auto count = count_segments<P>;
  const int shared = count_shared_bytes<P>(problem.places);
  allow_shared(call, count, shared);
  const int64_t max_blocks = ceil_div<int64_t>(max_tiles * P::kTile, kMinItems);
  const int blocks = resident_blocks(call, count, kCountThreads, shared, max_blocks);
  launch_overlapping(call, stream, count, blocks, kCountThreads, shared, problem);
}

template <typename P>
void launch_fill(const Call& call, const P& problem, cudaStream_t stream) {
  const auto fill = fill_digits<P>;
  const int64_t max_blocks = ceil_div<int64_t>(problem.length, kFillThreads * kFilledBytes);
  const int blocks = resident_blocks(call, fill, kFillThreads, 0, problem.rows * max_blocks);
  const int64_t parts = clamp<int64_t>(blocks / problem.rows, 1, max_blocks);
  const int64_t part_items = ceil_div<int64_t>(problem.length, parts * kFilledBytes) * kFilledBytes;
  launch_overlapping(call, stream, fill, static_cast<unsigned>(problem.rows * parts), kFillThreads, 0, problem, parts,
                     part_items);
}

template <typename P>
void run(const Call& call, const SortPlan& plan, const typename P::Order& order, const SortScratch& scratch,
         const Disorder& disorder, cudaStream_t stream) {
  using Columns = Columns<typename P::Word, typename P::Payload>;
  static_assert(most_shared_bytes<P>() <=
                digit_shared_bytes(sizeof(typename P::Word), kPayloadWidth<typename P::Payload>));
  const SegmentedSortOperands& operands = plan.operands();
  const auto columns = [](const void* keys, const void* payload) {
    return Columns{static_cast<typename P::Word*>(const_cast<void*>(keys)),
                   static_cast<typename P::Payload*>(const_cast<void*>(payload))};
  };
  const DigitCounts& counts = scratch.digits;
  P problem{{},
            order,
            operands.segments.length,
            operands.segments.rows,
            operands.segments.counts,
            plan.digit_places(),
            plan.first_place(),
            kFillsDigits<P> ? 0 : ceil_div<int64_t>(operands.segments.length, P::kTile),
            columns(operands.keys, operands.payload),
            {columns(operands.sorted_keys, operands.sorted_payload), columns(scratch.keys, scratch.payload)},
            static_cast<typename P::Offset*>(counts.starts),
            static_cast<typename P::Offset*>(counts.sums),
            counts.tickets,
            counts.counted,
            counts.passes,
            disorder};
  if constexpr (P::kListed) {
    static_cast<ListedSegments&>(problem) = {counts.segments, counts.tiles, counts.totals, counts.taken};
  }
  if (plan.variant() != SortVariant::kLongSegments)
    check(call, cudaMemsetAsync(counts.tickets, 0, counts.zeroed_bytes, stream));
  if constexpr (P::kListed) {
    launch_list(call, problem, plan, scratch, stream);
    launch_count_of_segments(call, problem, counts.max_tiles, stream);
  } else {
    launch_count(call, problem, stream);
  }
  if constexpr (kFillsDigits<P>) {
    launch_fill(call, problem, stream);
  } else {
    launch_scatters(call, problem, counts.max_tiles, stream);
  }
}

template <typename Order, typename Payload>
using ListedProblem = DigitProblem<Order, Payload, uint32_t, true>;

template <typename Order, typename Payload>
constexpr bool kFewHaveOtherTiles =
    kDigitShape<typename Order::Word, Payload, true>.tile() != kDigitShape<typename Order::Word, Payload, false>.tile();
template <typename Order, typename Payload>
using FewProblem = DigitProblem<Order, Payload, uint32_t, false, kFewHaveOtherTiles<Order, Payload>>;

}  // namespace

void sort_by_digits(const Call& call, const SortPlan& plan, const SortScratch& scratch, const Disorder& disorder,
                    cudaStream_t stream) {
  const SegmentedSortOperands& operands = plan.operands();
  if (operands.whole_rows && plan.has_long_offsets()) {
    return dispatch_key_order(call, operands.key_type, operands.descending, [&](auto order) {
      dispatch_payload(call, operands.payload_width, [&](auto payload) {
        using P = DigitProblem<decltype(order), decltype(payload), uint64_t, false>;
        run<P>(call, plan, order, scratch, disorder, stream);
      });
    });
  }
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width, [&](auto payload) {
      using Order = decltype(order);
      using Payload = decltype(payload);
      if (!operands.whole_rows) {
        run<ListedProblem<Order, Payload>>(call, plan, order, scratch, disorder, stream);
      } else if (plan.has_few_digit_items()) {
        run<FewProblem<Order, Payload>>(call, plan, order, scratch, disorder, stream);
      } else {
        run<DigitProblem<Order, Payload, uint32_t, false>>(call, plan, order, scratch, disorder, stream);
      }
    });
  });
}

void list_digit_shapes(const Call& call, KernelShapeList& list) {
  for_each_kind(call, "", {0, 4, 8}, [&](auto order, auto payload, const std::string& kind) {
    using P = DigitProblem<decltype(order), decltype(payload), uint64_t, false>;
    constexpr int64_t kBytes = most_shared_bytes<P>();
    list.push_back({"sort by digits" + kind, {{kBytes, kBytes}}, true});
  });
}

}  // namespace mgpu::cuda::sorting
