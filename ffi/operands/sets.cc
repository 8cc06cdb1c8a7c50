#include "operands/sets.h"

#include "cpu/tunings.h"
#include "cuda/tunings.h"
#include "operands/read.h"

namespace mgpu {

namespace {
constexpr Enumeration kKindValues{"set_operation", {"intersection", "union", "difference", "symmetric_difference"}};
}  // namespace

const Signature signature::sets{
    .operands = {"a", "b", "a_count", "b_count", "fill", "a_values", "b_values", "values_fill"},
    .results = {"keys", "values", "count"},
    .attributes = {{"kind", &kKindValues}, {"duplicates"}, {"payload", &kPayloadValues}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["sets"] = {cpu::kSetTile};
          for (int width : kKeyWidths) sizes["sets"].insert(set_tile(width));
        },
};

SetsOperands::SetsOperands(const Call& call) {
  const auto mode = static_cast<PayloadMode>(call.attributes["payload"]);
  const Arguments in(call, signature::sets, mode == PayloadMode::kNone ? "values" : "");
  rule = SetRule::of(static_cast<SetOperation>(in.attribute("kind")));
  duplicates = in.flag("duplicates");

  const Array& keys_out = in.result("keys");
  const int64_t rows = Call::batch(keys_out, 1);
  key_type = keys_out.dtype;
  size = Call::length(keys_out);
  keys = keys_out.data;
  pair = read_sorted_pair(call, in["a"], in["b"], in["a_count"], in["b_count"], rows);
  call.expect(in["a"].dtype == key_type, "expected a result of the keys' type");
  const auto read = [&](const char* name, DType dtype, int64_t length) -> Rows {
    call.expect(in[name].dtype == dtype, "expected operands of the results' types");
    call.expect(Call::length(in[name]) == length, "expected one value a key");
    return {in[name].data, call.row_stride(in[name], length, rows, name)};
  };
  fill = read("fill", key_type, 1);
  counts = call.index_result(in.result("count"), rows, "count");

  if (mode == PayloadMode::kNone) return;
  const Array& payload_out = in.result("values");
  call.expect(payload_out.size() == keys_out.size(), "payload: expected the shape of the keys");
  payload = payload_out.data;
  payload_width = byte_width(payload_out.dtype);
  gives_indices = mode == PayloadMode::kIndices;
  if (gives_indices) return;
  a_values = read("a_values", payload_out.dtype, pair.a.length);
  if (rule.b_alone) b_values = read("b_values", payload_out.dtype, pair.b.length);
  values_fill = read("values_fill", payload_out.dtype, 1);
}

SetsOperands::Scratch SetsOperands::layout(Workspace& workspace) const {
  const int64_t words = 1 + pair.rows * cuda_row_tiles();
  return {workspace.take<Split<int64_t>>(pair.rows * (cuda_row_tiles() + 1)), workspace.take<uint64_t>(words), words};
}

int64_t workspace::sets(const Call& call) { return layout_bytes(SetsOperands(call)); }

}  // namespace mgpu
