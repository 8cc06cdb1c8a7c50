#include "cpu/policy.h"
#include "ops/load_balance/plan.h"
#include "ops/load_balance/read_work.h"

namespace mgpu {

void read_work(const Call& call, const Arguments& in, WorkList& work, const char* offsets, const char* count) {
  work.objects = Call::length(in[offsets]);
  work.offsets = call.index_vector(in[offsets], offsets);
  work.offsets_stride = call.row_stride(in[offsets], work.objects, work.problems, offsets);
  work.counts = call.live_counts(in[count], work.problems, count);
}

const Signature signature::load_balance_search{
    .operands = {"offsets: index [objects]", "total: index [1]?"},
    .results = {"objects: index [size]", "ranks: =objects [size] if return_rank"},
    .attributes = {{"return_rank"}},
    .tiles =
        [](TileSizes& sizes) {
          auto& tile_sizes = sizes["load_balance"];
          tile_sizes = {cpu::kLoadBalanceTile};
          for (int items : {kWordItems, kRowItems, kWideRowItems}) tile_sizes.insert(kWorkThreads * items);
        },
};

LoadBalanceOperands::LoadBalanceOperands(const Call& call) {
  const Arguments in(call, signature::load_balance_search);
  const Array& out = in.result("objects");
  work.problems = Call::batch(out, 1);
  work.size = work.capacity = Call::length(out);
  read_work(call, in, work, "offsets", "total");
  wide = call.index_vector(out, "objects").wide;
  objects = out.data;
  if (in.flag("return_rank")) ranks = in.result("ranks").data;
}

}  // namespace mgpu
