#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/sets/plan.h"

namespace mgpu {

namespace {
constexpr Enumeration kKindValues{"set_operation", {"intersection", "union", "difference", "symmetric_difference"}};
}  // namespace

const Signature signature::sets{
    .operands = {"a: key [n]", "b: =a [m]", "a_count: index [1]?", "b_count: index [1]?", "fill: =a [1]",
                 "a_values: =values [n] if payload=1", "b_values: =values [m]? if payload=1",
                 "values_fill: =values [1] if payload=1"},
    .results = {"keys: =a [size]", "values: any [size] if payload", "count: index []"},
    .attributes = {{"kind", &kKindValues}, {"duplicates"}, {"payload", &kPayloadValues}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["sets"] = {cpu::kSetTile};
          for (int width : kKeyWidths) sizes["sets"].insert(set_tile(width));
        },
};

SetsOperands::SetsOperands(const Call& call) {
  const Arguments in(call, signature::sets);
  const auto mode = static_cast<PayloadMode>(in.attribute("payload"));
  rule = SetRule::of(static_cast<SetOperation>(in.attribute("kind")));
  duplicates = in.flag("duplicates");

  const Array& keys_out = in.result("keys");
  const int64_t rows = Call::batch(keys_out, 1);
  key_type = keys_out.dtype;
  size = Call::length(keys_out);
  keys = keys_out.data;
  pair = read_sorted_pair(call, in["a"], in["b"], in["a_count"], in["b_count"], rows);
  const auto read = [&](const char* name, int64_t length) -> Rows {
    call.expect(Call::length(in[name]) == length, "expected one value a key");
    return {in[name].data, call.row_stride(in[name], length, rows, name)};
  };
  fill = read("fill", 1);
  counts = call.index_result(in.result("count"), rows, "count");

  if (mode == PayloadMode::kNone) return;
  const Array& payload_out = in.result("values");
  payload = payload_out.data;
  payload_width = byte_width(payload_out.dtype);
  gives_indices = mode == PayloadMode::kIndices;
  if (gives_indices) return;
  a_values = read("a_values", pair.a.length);
  if (rule.b_unpaired) b_values = read("b_values", pair.b.length);
  values_fill = read("values_fill", 1);
}

}  // namespace mgpu
