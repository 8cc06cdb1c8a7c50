#include "ops/common/dispatch.h"
#include "ops/sorted_pair/launch_merge_pipeline.h"
#include "ops/sorted_search/kernels.cuh"
#include "ops/sorted_search/short_rows.cuh"
#include "runtime/operations.h"

namespace mgpu::cuda {

namespace searching {

template <typename Order>
void search_short_rows(const Call& call, const SortedSearchOperands& operands, Order order, cudaStream_t stream) {
  const SortedRows& needles = operands.needles();
  const SortedRows& haystack = operands.haystack();
  const int64_t row_keys = needles.length + (haystack.stride == 0 ? 0 : haystack.length);
  const short_rows::Search<Order> problem{{operands.pair.rows, row_keys},
                                          needles,
                                          haystack,
                                          order,
                                          Divisor(needles.length),
                                          Divisor(haystack.length),
                                          shared_pitch(haystack.length, haystack.stride == 0),
                                          operands.needles_are_b,
                                          operands.positions};
  launch_rows(call, stream, short_rows::search<Order>, problem.tiles, problem.shared_bytes(), problem);
}

template <typename Order>
void match_short_rows(const Call& call, const SortedMatchOperands& operands, Order order, cudaStream_t stream) {
  const auto side = [](const SortedMatchOperands::Side& side) {
    return short_rows::MatchSide{side.index, side.match, side.count};
  };
  const short_rows::Match<Order> problem{{operands.pair, order, 0}, side(operands.a), side(operands.b)};
  launch_rows(call, stream, short_rows::match<Order>, problem.rows.tiles, problem.shared_bytes(), problem);
}

}  // namespace searching

void list_sorted_search_shapes(const Call& call, KernelShapeList& list) {
  using namespace searching;
  for_each_kind(call, "", {0}, [&](auto order, auto, const std::string& keys) {
    using Word = typename decltype(order)::Word;
    const auto add = [&](const char* name, bool matches) {
      list.push_back(pipeline_shapes(
          name + keys, [&](bool large_stages) { return search_shape(sizeof(Word), matches, large_stages); }));
    };
    add("sorted_search", false);
    add("sorted_match", true);
  });
}

void sorted_search(const Call& call, cudaStream_t stream) {
  using namespace searching;
  const SortedSearchOperands operands(call);
  const int64_t needles = operands.pair.rows * operands.needles().length;
  if (needles == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    using Order = decltype(order);
    if (operands.prefers_binary_search()) {
      search_needles<<<ceil_div<int64_t>(needles, kSearchThreads), kSearchThreads, 0, stream>>>(operands, order);
      check_launch(call);
    } else if (ShortPair<Order>::fits(operands.pair, 0)) {
      search_short_rows(call, operands, order, stream);
    } else {
      launch_merge_pipeline(
          call, stream, operands, order,
          [](bool large_stages) { return search_shape(sizeof(typename Order::Word), false, large_stages); },
          [](auto large_stages) { return search_tiles<Order, large_stages()>; },
          [&](const auto& start, const PipelineTiles<Order>& tiles) {
            start(tiles, operands.positions, operands.needles_are_b);
          });
    }
  });
}

void sorted_match(const Call& call, cudaStream_t stream) {
  using namespace searching;
  const SortedMatchOperands operands(call);
  if (operands.pair.rows == 0) return;
  dispatch_order(call, operands.key_type, false, [&](auto order) {
    using Order = decltype(order);
    if (ShortPair<Order>::fits(operands.pair, 0, RowTiles::kSlots)) {
      return match_short_rows(call, operands, order, stream);
    }
    for (const auto* side : {&operands.a, &operands.b}) {
      const int64_t bytes = operands.pair.rows * (side->count.wide ? sizeof(int64_t) : sizeof(int32_t));
      check(call, cudaMemsetAsync(side->count.data, 0, bytes, stream));
    }
    launch_merge_pipeline(
        call, stream, operands, order,
        [](bool large_stages) { return search_shape(sizeof(typename Order::Word), true, large_stages); },
        [](auto large_stages) { return match_tiles<Order, large_stages()>; },
        [&](const auto& start, const PipelineTiles<Order>& tiles) {
          start(MatchProblem<Order>{tiles, operands.a, operands.b});
        });
  });
}

}  // namespace mgpu::cuda
