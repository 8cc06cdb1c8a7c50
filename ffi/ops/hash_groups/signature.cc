#include "ops/common/read.h"
#include "ops/hash_groups/plan.h"

namespace mgpu {

namespace {

const Enumeration kGroupStateValues{"state", {"none", "add", "min", "max"}};

}  // namespace

const Signature signature::hash_groups{
    .operands = {"keys: any [n]", "x: any [n]?", "y: any [n]?", "count: index [1]?", "lower: any [n]?"},
    .results = {"groups: any [slots]", "x_states: u32 [slots]", "y_states: u32 [slots]", "counters: s32 [counters]"},
    .attributes = {{"entries", &kNumber},
                   {"x_state", &kGroupStateValues},
                   {"y_state", &kGroupStateValues},
                   {"bucketed"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["hash_groups"] = {kPartitionTile};
          sizes["group_entries"] = {kGroupEntries};
        },
};

HashGroupsOperands::HashGroupsOperands(const Call& call) {
  const Arguments in(call, signature::hash_groups);
  const Array& given_keys = in["keys"];
  key_type = in.result("groups").dtype;
  bucketed = in.flag("bucketed");
  length = Call::length(given_keys);
  entries = in.attribute("entries");
  rows = Call::batch(in.result("groups"), 1);
  counts = call.live_counts(in["count"], rows);
  keys = given_keys.data;
  keys_stride = call.row_stride(given_keys, length, rows, "keys");
  const bool is_code = key_type == DType::u32 || key_type == DType::u64 || key_type == DType::c64;
  call.expect(is_code || has_signed_keys(), "groups: expected integers of 32 or 64 bits");
  const Array& given_lower = in["lower"];
  const auto has_words = [](const Array& array) { return array.dtype == DType::u32 || array.dtype == DType::s32; };
  lower = nullptr;
  lower_stride = 0;
  flip_of_pairs = 0;
  if (Call::length(given_lower) > 0) {
    call.expect(has_words(given_keys) && has_words(given_lower), "keys, lower: expected integers of 32 bits");
    call.expect(byte_width(key_type) == 8 && !has_signed_keys(), "groups: expected codes of 64 bits");
    lower = given_lower.as<const uint32_t>();
    lower_stride = call.row_stride(given_lower, length, rows, "lower");
    flip_of_pairs = uint64_t{given_keys.dtype == DType::s32} << 63 | uint64_t{given_lower.dtype == DType::s32} << 31;
  } else {
    call.expect(given_keys.dtype == key_type, "groups: expected the type of keys");
  }
  call.expect(length < int64_t{1} << 31, "keys: expected fewer than 2^31");
  call.expect(entries > 0 && entries <= int64_t{1} << 30 && (entries & (entries - 1)) == 0,
              "entries: expected a power of two, up to 2^30");
  call.expect(Call::length(in.result("groups")) == entries + 1, "groups: expected one more than entries");
  call.expect(Call::length(in.result("counters")) == kGroupCounters, "counters: expected three");
  columns = 0;
  for (int c = 0; c < kMaxGroupColumns; ++c) {
    const char* const name = c == 0 ? "x" : "y";
    const Array& array = in[name];
    kinds[c] = static_cast<GroupState>(in.attribute(c == 0 ? "x_state" : "y_state"));
    call.expect(has_words(array), "x, y: expected integers of 32 bits");
    has_values[c] = Call::length(array) > 0;
    values[c] = has_values[c] ? array.as<const uint32_t>() : nullptr;
    values_stride[c] = has_values[c] ? call.row_stride(array, length, rows, name) : 0;
    is_signed[c] = has_values[c] && array.dtype == DType::s32;
    states[c] = in.result(c == 0 ? "x_states" : "y_states").as<uint32_t>();
    if (kinds[c] != GroupState::kNone && columns == c) columns = c + 1;
  }
  call.expect(columns > 0, "x_state: expected a state");
  groups = in.result("groups").data;
  counters = in.result("counters").as<uint32_t>();
}

}  // namespace mgpu
