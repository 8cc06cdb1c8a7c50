#include "operands/merge.h"

#include "cpu/tunings.h"
#include "cuda/tunings.h"
#include "operands/payload.h"
#include "operands/read.h"

namespace mgpu {

const Signature signature::merge{
    .operands = {"a", "b", "a_values", "b_values", "a_count", "b_count"},
    .results = {"keys", "values"},
    .attributes = {{"descending"}, {"payload", &kPayloadValues}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["merge"] = {cpu::kMergeTile};
          for (bool large : {false, true}) {
            for (int width : kKeyWidths) {
              for (int payload_width : {0, 4, 8})
                sizes["merge"].insert(merge_shape(width, payload_width, large).tile());
            }
          }
        },
};

MergeOperands::MergeOperands(const Call& call) {
  const Arguments in(call, signature::merge);
  const Array& keys_out = in.result("keys");
  key_type = keys_out.dtype;
  descending = in.flag("descending");
  pair = read_sorted_pair(call, in["a"], in["b"], in["a_count"], in["b_count"], Call::batch(keys_out, 1));
  call.expect(in["a"].dtype == key_type && Call::length(keys_out) == pair.row_slots(),
              "expected a result of the keys' type and total length");
  keys = keys_out.data;
  const auto mode = static_cast<PayloadMode>(in.attribute("payload"));
  if (mode == PayloadMode::kNone) return;
  const Array& payload_out = in.result("values");
  call.expect(payload_out.size() == keys_out.size(), "payload: expected the shape of the keys");
  payload = payload_out.data;
  payload_width = byte_width(payload_out.dtype);
  if (mode == PayloadMode::kIndices) return;
  const auto side = [&](const char* name, const SortedRows& keys) -> Payload {
    const Array& values = in[name];
    call.expect(values.dtype == payload_out.dtype, "values: expected the type of the result");
    call.expect(Call::length(values) == keys.length, "values: expected one a key");
    return {values.data, call.row_stride(values, keys.length, pair.rows, name), values.size()};
  };
  a_payload = side("a_values", pair.a);
  b_payload = side("b_values", pair.b);
}

MergeSplits MergeOperands::layout(Workspace& workspace) const { return MergeSplits::layout(pair, workspace); }

int64_t workspace::merge(const Call& call) { return layout_bytes(MergeOperands(call)); }

}  // namespace mgpu
