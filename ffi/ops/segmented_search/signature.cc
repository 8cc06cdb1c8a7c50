#include "ops/common/read.h"
#include "ops/segmented_search/operands.h"

namespace mgpu {

PlanReport report_segmented_search(const Call& call, const Traits& traits);

const Signature signature::segmented_search{
    .operands = {"needles: key [n]", "ids: =positions [n]?", "haystack: =needles [m]", "heads: =positions [segments]",
                 "ends: =positions [segments]?", "needles_count: index [1]?", "haystack_count: index [1]?"},
    .results = {"positions: index [n]"},
    .attributes = {{"right"}, {"exact"}},
    .plan = report_segmented_search,
};

SegmentedSearchOperands::SegmentedSearchOperands(const Call& call) {
  const Arguments in(call, signature::segmented_search);
  const Array& result = in.result("positions");
  key_type = in["needles"].dtype;
  right = in.flag("right");
  exact = in.flag("exact");
  pair = read_sorted_pair(call, in["needles"], in["haystack"], in["needles_count"], in["haystack_count"],
                          Call::batch(result, 1));
  positions = call.index_result(result, pair.rows * pair.a.length, "positions");
  segments = Call::length(in["heads"]);
  call.expect(positions.wide || maximum(pair.b.length, segments) < int64_t{1} << 31,
              "positions: expected int64 for as many items");
  const auto indices = [&](const char* name, int64_t length, int64_t& stride) {
    const Array& array = in[name];
    stride = call.row_stride(array, length, pair.rows, name);
    return static_cast<const void*>(array.data);
  };
  ids = Call::length(in["ids"]) == 0 ? nullptr : indices("ids", pair.a.length, ids_stride);
  heads = indices("heads", segments, heads_stride);
  ends = Call::length(in["ends"]) == 0 ? nullptr : indices("ends", segments, ends_stride);
}

}  // namespace mgpu
