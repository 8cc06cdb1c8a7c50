#include "cpu/policy.h"
#include "ops/common/payload.h"
#include "ops/common/read.h"
#include "ops/merge/plan.h"

namespace mgpu {

const Signature signature::merge{
    .operands = {"a: key [n]", "b: =a [m]?", "a_values: =values [n] if payload=1",
                 "b_values: =values [m]? if payload=1", "a_count: index [1]?", "b_count: index [1]?",
                 "run_ends: index [runs]"},
    .results = {"keys: =a [size]", "values: any [size] if payload"},
    .attributes = {{"descending"}, {"payload", &kPayloadValues}, {"size", &kNumber}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["merge"] = {cpu::kMergeTile};
          for (bool large_stages : {false, true}) {
            for (int width : kKeyWidths) {
              for (int payload_width : {0, 4, 8})
                sizes["merge"].insert(merge_shape(width, payload_width, large_stages).tile());
            }
          }
        },
};

MergeOperands::MergeOperands(const Call& call) {
  const Arguments in(call, signature::merge);
  const Array& keys_out = in.result("keys");
  key_type = keys_out.dtype;
  descending = in.flag("descending");
  const int64_t rows = Call::batch(keys_out, 1);
  const Array& ends = in["run_ends"];
  const bool of_runs = Call::length(ends) > 0;
  const char* const b_name = of_runs ? "a" : "b";
  const char* const b_values_name = of_runs ? "a_values" : "b_values";
  pair = read_sorted_pair(call, in["a"], in[b_name], in["a_count"], in["b_count"], rows);
  b_index = pair.a.length;
  if (of_runs) {
    runs = {call.index_vector(ends, "run_ends"), call.row_stride(ends, Call::length(ends), rows, "run_ends"),
            Call::length(ends)};
    call.expect(Call::length(keys_out) <= pair.a.length, "expected no more results than keys");
    pair.a.length = Call::length(keys_out);
    pair.b.length = b_index = 0;
  }
  call.expect(Call::length(keys_out) == pair.row_slots(), "keys: expected as many as there are in both operands");
  keys = keys_out.data;
  const auto mode = static_cast<PayloadMode>(in.attribute("payload"));
  if (mode == PayloadMode::kNone) return;
  const Array& payload_out = in.result("values");
  payload = payload_out.data;
  payload_width = byte_width(payload_out.dtype);
  if (mode == PayloadMode::kIndices) return;
  const auto side = [&](const char* name, const Array& keys) -> Payload {
    const Array& values = in[name];
    const int64_t length = Call::length(keys);
    call.expect(values.dtype == payload_out.dtype, "values: expected the type of the result");
    call.expect(Call::length(values) == length, "values: expected one per key");
    return {values.data, call.row_stride(values, length, pair.rows, name), values.size()};
  };
  a_payload = side("a_values", in["a"]);
  b_payload = side(b_values_name, in[b_name]);
}

}  // namespace mgpu
