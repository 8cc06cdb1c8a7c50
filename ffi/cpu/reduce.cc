#include "cpu/reduce.h"

#include "operands/dispatch_operator.h"
#include "operations.h"

namespace mgpu::cpu {

namespace {

template <bool kSegmented, typename Operands>
void run(const Operands& operands, const Call& call, Executor& executor) {
  operands.template dispatch_reduction<false>(call, [&]<typename Operator>(const Operator& op) {
    ReduceProblem<Operator, kSegmented>{static_cast<const typename Operator::Element*>(operands.x),
                                        operands.segments,
                                        {operands.result, operands.wide_result},
                                        op}
        .run(executor);
  });
}

}  // namespace

void reduce(const Call& call, Executor& executor) { run<false>(ReduceOperands(call), call, executor); }

void segmented_reduce(const Call& call, Executor& executor) {
  run<true>(SegmentedReduceOperands(call), call, executor);
}

}  // namespace mgpu::cpu
