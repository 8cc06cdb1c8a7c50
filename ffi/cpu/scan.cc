#include "cpu/scan.h"

#include "operands/dispatch_operator.h"
#include "operands/scan.h"
#include "operations.h"

namespace mgpu {

void cpu::scan(const Call& call, Executor& executor) {
  const ScanOperands operands(call);
  operands.dispatch<false>(call, [&]<typename Operator>(const Operator& op) {
    ScanProblem<Operator>{static_cast<const typename Operator::Element*>(operands.x),
                          operands.segments,
                          operands.exclusive,
                          operands.reverse,
                          {operands.result, operands.wide_result},
                          {operands.totals, operands.wide_result},
                          op}
        .run(executor);
  });
}

}  // namespace mgpu
