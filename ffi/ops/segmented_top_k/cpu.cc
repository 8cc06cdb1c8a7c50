// A task has one short segment or several; all threads search a long segment.
#include "cpu/for_each_segment.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_top_k/operands.h"
#include "ops/top_k/best.h"
#include "runtime/operations.h"

namespace mgpu {

void cpu::segmented_top_k(const Call& call, Executor& executor) {
  const SegmentedTopKOperands operands(call);
  if (operands.rows * operands.segments * operands.k == 0) return;
  dispatch_order(call, operands.key_type, operands.largest, [&](auto order) {
    using Word = typename decltype(order)::Word;
    const auto keys = [&](const RowRange& segment) {
      return static_cast<const Word*>(operands.x) + segment.row * operands.x_stride + segment.range.begin;
    };
    const auto store = [&](const RowRange& segment, auto best) {
      const int64_t i = segment.row * operands.segments + segment.number;
      best.store(operands.values, operands.indices, i * operands.k, segment.range.begin);
    };
    for_each_segment(
        executor, operands, kTopKPart,
        [&](const RowRange& segment) {
          store(segment, Best(order, operands.k, keys(segment), 0, segment.range.size()));
        },
        [&](const RowRange& segment) {
          store(segment, best_of_parts(executor, order, operands.k, keys(segment), segment.range.size()));
        });
  });
}

}  // namespace mgpu
