#include "ops/common/dispatch.h"
#include "ops/common/read.h"
#include "ops/segmented_sort/operands.h"

namespace mgpu {

void sort_tile_sizes(TileSizes& sizes);
PlanReport report_sort(const Call& call, const Traits& traits);

namespace {

const Enumeration kMethods{"sort_method", {"merging", "fastest", "nearly_sorted", "partitioning"}};

}  // namespace

const Signature signature::segmented_sort{
    .operands = {"keys: any [..n]", "heads: index [m]", "flags: any [*]", "count: index [1]?",
                 "values: =values [..n] if payload=1"},
    .results = {"keys: =keys [n]", "values: any [n] if payload"},
    .attributes = {{"descending"}, {"method", &kMethods}, {"bits", &kNumber}, {"payload", &kPayloadValues}},
    .tiles = sort_tile_sizes,
    .plan = report_sort,
};

SegmentedSortOperands::SegmentedSortOperands(const Call& call) {
  const Arguments in(call, signature::segmented_sort);
  const Array& heads = in["heads"];
  const Array& flags = in["flags"];
  const Array& keys_out = in.result("keys");
  descending = in.flag("descending");
  method = static_cast<SortMethod>(in.attribute("method"));
  payload_mode = static_cast<PayloadMode>(in.attribute("payload"));

  key_type = in["keys"].dtype;
  bits = static_cast<int>(in.attribute("bits"));
  call.expect(bits > 0 && bits <= 8 * byte_width(key_type), "bits: expected 1 to the number that keys have");
  segments.length = Call::length(keys_out);
  segments.rows = Call::batch(keys_out, 1);
  keys = in["keys"].data;
  sorted_keys = keys_out.data;

  segments.heads_count = Call::length(heads);
  segments.heads = call.index_vector(heads, "heads");
  segments.heads_stride = call.row_stride(heads, segments.heads_count, segments.rows, "heads");
  has_flags = Call::length(flags) > 0;
  whole_rows = segments.heads_count == 0 && !has_flags;
  call.expect(whole_rows || method == SortMethod::kMerging, "method: expected merging for heads or flags");
  call.expect(method != SortMethod::kPartitioning || byte_width(key_type) == 4,
              "method: expected keys of 4 bytes for partitioning");
  if (has_flags) {
    segments.flags_stride = call.row_stride(flags, Call::length(flags), segments.rows, "flags");
    const bool words = flags.dtype == DType::u32;
    call.expect(words || flags.dtype == DType::boolean, "flags: expected bool or uint32");
    call.expect(Call::length(flags) == (words ? ceil_div<int64_t>(segments.length, 32) : segments.length),
                "flags: expected one bit or one bool an item");
    (words ? reinterpret_cast<const void*&>(segments.flag_words)
           : reinterpret_cast<const void*&>(segments.flag_bytes)) = flags.data;
  }
  segments.counts = call.live_counts(in["count"], segments.rows);
  payload = nullptr;
  sorted_payload = nullptr;
  if (payload_mode != PayloadMode::kNone) {
    const Array& payload_out = in.result("values");
    payload_width = byte_width(payload_out.dtype);
    sorted_payload = payload_out.data;
    if (payload_mode == PayloadMode::kGiven) payload = in["values"].data;
  }
}

}  // namespace mgpu
