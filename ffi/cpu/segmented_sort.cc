#include "cpu/segmented_sort.h"

#include "operands/dispatch.h"
#include "operands/segmented_sort.h"
#include "operations.h"

namespace mgpu {

void cpu::segmented_sort(const Call& call, Executor& executor) {
  const SegmentedSortOperands operands(call);
  if (operands.segments.total() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&]<typename Order>(Order order) {
    dispatch_payload(call, operands.payload_width, [&]<typename Payload>(Payload) {
      SortProblem<Order, Payload>{
          operands.segments,
          {order, operands.keys, operands.payload, operands.index_row_length()},
          {order, operands.sorted_keys, operands.sorted_payload},
      }
          .run(executor);
    });
  });
}

}  // namespace mgpu
