#include "ops/load_balance/cpu.h"

#include "cpu/policy.h"
#include "ops/load_balance/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

constexpr int64_t kTile = cpu::kLoadBalanceTile;

template <typename Index>
void search(const LoadBalanceOperands& operands, cpu::Executor& executor) {
  cpu::for_each_work_tile(
      executor, operands.work, kTile,
      [&](int64_t problem, const WorkRow& row, Range<int64_t> outputs, int64_t live_end) {
        Index* const objects = static_cast<Index*>(operands.objects) + problem * operands.work.size;
        Index* const ranks = static_cast<Index*>(operands.ranks) + (operands.ranks ? problem * operands.work.size : 0);
        for_each_run(row, {outputs.begin, live_end}, [&](int64_t object, Range<int64_t> run) {
          const bool none = object < row.first;
          cpu::write_run(objects, run, live_end, [=](int64_t) { return static_cast<Index>(none ? -1 : object); });
          if (!ranks) return;
          const int64_t start = none ? 0 : row.start(object);
          cpu::write_run(ranks, run, live_end, [=](int64_t i) { return static_cast<Index>(none ? -1 : i - start); });
        });
        std::fill(objects + live_end, objects + outputs.end, Index{-1});
        if (ranks) std::fill(ranks + live_end, ranks + outputs.end, Index{-1});
      });
}

}  // namespace

void cpu::load_balance_search(const Call& call, Executor& executor) {
  const LoadBalanceOperands operands(call);
  operands.wide ? search<int64_t>(operands, executor) : search<int32_t>(operands, executor);
}

}  // namespace mgpu
