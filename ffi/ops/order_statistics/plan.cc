#include "ops/order_statistics/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

OrderStatisticsOperands::Scratch OrderStatisticsOperands::layout(Workspace& workspace) const {
  const int64_t all = rows * rank_count;
  const int64_t begin = workspace.used();
  Scratch scratch{workspace.take<uint64_t>(all),
                  workspace.take<int64_t>(all),
                  workspace.take<uint64_t>(all * kRankDigits),
                  workspace.take<unsigned>(rows),
                  workspace.take<RankIntervals>(takes_sample() ? rows : 0),
                  0,
                  nullptr};
  scratch.bytes = workspace.used() - begin;
  scratch.between = workspace.take<char>(rows * between_room() * byte_width(key_type));
  return scratch;
}

int64_t workspace::order_statistics(const Call& call) { return layout_bytes(OrderStatisticsOperands(call)); }

}  // namespace mgpu
