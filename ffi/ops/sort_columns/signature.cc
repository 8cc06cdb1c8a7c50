#include "ops/common/read.h"
#include "ops/sort_columns/operands.h"

namespace mgpu {

// Of ops/sort_columns/plan.cc.
void column_tile_sizes(TileSizes& sizes);
PlanReport report_columns(const Call& call, const Traits& traits);

const Signature signature::sort_columns{
    .operands = {"high: any [..n]", "low: any [..n]", "count: index [1]?", "values: =values [..n] if payload=1"},
    .results = {"high: =high [n]", "low: =low [n]", "values: any [n] if payload"},
    .attributes = {{"high_descending"}, {"low_descending"}, {"payload", &kPayloadValues}},
    .tiles = column_tile_sizes,
    .plan = report_columns,
};

SortColumnsOperands::SortColumnsOperands(const Call& call) {
  const Arguments in(call, signature::sort_columns);
  const auto flip = [&](const char* column, const char* descending) {
    const DType type = in[column].dtype;
    call.expect(type == DType::u32 || type == DType::s32, "columns: expected integers of 32 bits");
    return uint64_t{IntegerOrder<uint32_t>::make(key_kind(type), 0, in.flag(descending)).flip};
  };
  order = {flip("high", "high_descending") << 32 | flip("low", "low_descending")};
  length = Call::length(in.result("high"));
  rows = Call::batch(in.result("high"), 1);
  call.expect(length < int64_t{1} << 30, "columns: expected less than 2^30 items");
  high = in["high"].as<uint32_t>();
  low = in["low"].as<uint32_t>();
  sorted_high = in.result("high").as<uint32_t>();
  sorted_low = in.result("low").as<uint32_t>();
  counts = call.live_counts(in["count"], rows);
  payload_mode = static_cast<PayloadMode>(in.attribute("payload"));
  if (payload_mode == PayloadMode::kNone) return;
  const Array& payload_out = in.result("values");
  payload_width = byte_width(payload_out.dtype);
  sorted_payload = payload_out.data;
  if (payload_mode == PayloadMode::kGiven) payload = in["values"].data;
}

}  // namespace mgpu
