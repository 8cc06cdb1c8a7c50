#include "ops/common/dispatch.h"
#include "ops/merge/kernels.cuh"
#include "ops/merge/short_rows.cuh"
#include "ops/sorted_pair/launch_merge_pipeline.h"
#include "runtime/operations.h"

namespace mgpu::cuda {

namespace merging {

template <typename Order, typename Payload>
void run(const Call& call, const MergeOperands& operands, Order order, cudaStream_t stream) {
  constexpr int kWidth = sizeof(typename Order::Word);
  launch_merge_pipeline(
      call, stream, operands, order,
      [](bool large_stages) { return merge_shape(kWidth, kPayloadWidth<Payload>, large_stages); },
      [](auto large_stages) { return merge_tiles<Order, Payload, large_stages()>; },
      [&](const auto& start, const PipelineTiles<Order, true>& tiles) {
        const Problem<Order, Payload> problem{tiles,
                                              static_cast<typename Order::Word*>(operands.keys),
                                              operands.a_payload,
                                              operands.b_payload,
                                              static_cast<Payload*>(operands.payload),
                                              operands.b_index};
        start(problem);
      });
}

template <typename Order, typename Payload>
void run_short_rows(const Call& call, const MergeOperands& operands, Order order, cudaStream_t stream) {
  const SortedPair& pair = operands.pair;
  const auto values = [](const MergeOperands::Payload& side) {
    return ValueRows<Payload>{static_cast<const Payload*>(side.data), side.stride};
  };
  const short_rows::Merge<Order, Payload> problem{{pair, order, pair.row_slots()},
                                                  Divisor(pair.row_slots()),
                                                  operands.gives_indices(),
                                                  values(operands.a_payload),
                                                  values(operands.b_payload),
                                                  static_cast<typename Order::Word*>(operands.keys),
                                                  static_cast<Payload*>(operands.payload)};
  launch_rows(call, stream, short_rows::merge<Order, Payload>, problem.rows.tiles, problem.shared_bytes(), problem);
}

}  // namespace merging

void list_merge_shapes(const Call& call, KernelShapeList& list) {
  for_each_kind(call, "merge", {0, 4, 8}, [&](auto order, auto payload, const std::string& name) {
    list.push_back(pipeline_shapes(name, [](bool large_stages) {
      return merge_shape(sizeof(typename decltype(order)::Word), kPayloadWidth<decltype(payload)>, large_stages);
    }));
  });
}

void merge(const Call& call, cudaStream_t stream) {
  const MergeOperands operands(call);
  if (operands.pair.slots() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    using Order = decltype(order);
    dispatch_payload(call, operands.payload_width, [&](auto payload) {
      using Payload = decltype(payload);
      !operands.runs.given() && ShortPair<Order>::fits(operands.pair, operands.pair.row_slots())
          ? merging::run_short_rows<Order, Payload>(call, operands, order, stream)
          : merging::run<Order, Payload>(call, operands, order, stream);
    });
  });
}

}  // namespace mgpu::cuda
