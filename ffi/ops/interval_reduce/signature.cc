#include "ops/common/read.h"
#include "ops/interval_reduce/plan.h"

namespace mgpu {

const Signature signature::interval_reduce{
    .operands = {"x: any [n, width]", "starts: index [k]", "ends: =starts [k]", "count: index [1]?"},
    .results = {"result: reduced [k, width]"},
    .attributes = {{"op", &kOperatorValues}},
    .tiles =
        [](TileSizes& sizes) {
          const IntervalTile tile{4};
          sizes["interval_reduce"] = {kIntervalGroup, kIntervalGroup * kIntervalGroup, tile.intervals(), tile.room()};
        },
};

IntervalReduceOperands::IntervalReduceOperands(const Call& call, const Arguments& in)
    : OperatorOperands(call, in["x"], nullptr, nullptr, 2),
      width(Call::length(in["x"])),
      count(Call::length(in["starts"])),
      problems(Call::batch(in.result("result"), 2)),
      x_stride(call.row_stride(in["x"], segments.length * width, problems, "x", 2) / maximum<int64_t>(width, 1)),
      starts(call.index_vector(in["starts"], "starts")),
      ends(call.index_vector(in["ends"], "ends")),
      starts_stride(call.row_stride(in["starts"], count, problems, "starts")),
      ends_stride(call.row_stride(in["ends"], count, problems, "ends")),
      result(in.result("result").data),
      wide_result(in.result("result").dtype == DType::s64) {
  segments.counts = call.live_counts(in["count"], problems);
}
IntervalReduceOperands::IntervalReduceOperands(const Call& call)
    : IntervalReduceOperands(call, Arguments(call, signature::interval_reduce)) {}

}  // namespace mgpu
