#include "cpu/reduce.h"

#include "operands/dispatch_operator.h"
#include "operations.h"

namespace mgpu {

void cpu::reduce(const Call& call, Executor& executor) {
  const ReduceOperands operands(call);
  operands.dispatch_reduction<false>(call, [&]<typename Operator>(const Operator& op) {
    ReduceProblem<Operator>{static_cast<const typename Operator::Element*>(operands.x),
                            operands.segments,
                            {operands.result, operands.wide_result},
                            op}
        .run(executor);
  });
}

void cpu::segmented_reduce(const Call& call, Executor& executor) {
  const SegmentedReduceOperands operands(call);
  operands.dispatch_reduction<false>(call, [&]<typename Operator>(const Operator& op) {
    SegmentedReduceProblem<Operator>{static_cast<const typename Operator::Element*>(operands.x),
                                     operands.segments,
                                     {operands.result, operands.wide_result},
                                     op}
        .run(executor);
  });
}

}  // namespace mgpu
