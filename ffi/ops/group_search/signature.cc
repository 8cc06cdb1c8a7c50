#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/group_search/plan.h"

namespace mgpu {

const Signature signature::group_search{
    .operands = {"cuts: index [n]", "a_groups: s32 [n]", "b_groups: s32 [m]", "first_group: s32 [1]",
                 "group_count: index [1]", "a_count: index [1]?", "b_count: index [1]?"},
    .results = {"positions: =cuts [n]"},
    .attributes = {{"forward"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["group_search"] = {cpu::kGroupSearchPart, kGroupSearchPart, kGroupSearchShape.tile()};
          sizes["group_table"] = {kGroupTable};
        },
};

GroupSearchOperands::GroupSearchOperands(const Call& call) {
  const Arguments in(call, signature::group_search);
  const Array& result = in.result("positions");
  problems = Call::batch(result, 1);
  forward = in.flag("forward");
  a_length = Call::length(result);
  b_length = Call::length(in["b_groups"]);
  cuts = call.index_vector(in["cuts"], "cuts");
  cuts_stride = call.row_stride(in["cuts"], a_length, problems, "cuts");
  const auto groups = [&](const char* name, int64_t length, int64_t& stride) {
    const Array& array = in[name];
    stride = call.row_stride(array, length, problems, name);
    return array.as<const uint32_t>();
  };
  a_groups = groups("a_groups", a_length, a_stride);
  b_groups = groups("b_groups", b_length, b_stride);
  first_group = groups("first_group", 1, first_stride);
  group_count = call.index_vector(in["group_count"], "group_count");
  group_count_stride = call.row_stride(in["group_count"], 1, problems, "group_count");
  a_counts = call.live_counts(in["a_count"], problems, "a_count");
  b_counts = call.live_counts(in["b_count"], problems, "b_count");
  positions = call.index_result(result, problems * a_length, "positions");
  call.expect(positions.wide || b_length < int64_t{1} << 31, "cuts: expected int64 for so many rows");
}

}  // namespace mgpu
