#include "operands/segmented_sort.h"

#include "operands/read.h"

namespace mgpu {

const Signature signature::segmented_sort{
    .operands = {"keys", "heads", "flags", "count", "values"},
    .results = {"keys", "values"},
    .attributes = {{"descending"}, {"nearly_sorted"}, {"payload", &kPayloadValues}},
};

SegmentedSortOperands::SegmentedSortOperands(const Call& call) {
  const Arguments in(call, signature::segmented_sort);
  const Array& heads = in["heads"];
  const Array& flags = in["flags"];
  const Array& keys_out = in.result("keys");
  descending = in.flag("descending");
  nearly_sorted = in.flag("nearly_sorted");
  payload_mode = static_cast<PayloadMode>(in.attribute("payload"));

  key_type = in["keys"].dtype;
  segments.length = Call::length(keys_out);
  segments.rows = Call::batch(keys_out, 1);
  call.expect(in["keys"].size() == segments.total(), "keys: expected the shape of the result");
  keys = in["keys"].data;
  sorted_keys = keys_out.data;

  segments.heads_count = Call::length(heads);
  segments.heads = call.index_vector(heads, "heads");
  segments.heads_stride = call.row_stride(heads, segments.heads_count, segments.rows, "heads");
  whole_rows = segments.heads_count == 0 && Call::length(flags) == 0;
  call.expect(whole_rows || !nearly_sorted, "nearly_sorted: expected neither heads nor flags");
  if (Call::length(flags) > 0) {
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
    call.expect(payload_out.size() == segments.total(), "payload: expected the shape of the keys");
    if (payload_mode == PayloadMode::kGiven) {
      call.expect(in["values"].size() == segments.total(), "payload: expected the shape of the keys");
      payload = in["values"].data;
    }
  }
}

SegmentedSortOperands::RowSort SegmentedSortOperands::row_sort() const {
  if (!whole_rows) return RowSort::kSegments;
  const int width = byte_width(key_type);
  const bool has_payload = payload_width > 0;
  const auto fills = [&](RowShape shape) {
    const int64_t cell = shape.cell();
    return segments.rows == 1 || ceil_div(segments.length, cell) * cell <= 2 * segments.length;
  };
  if (segments.length <= kOneCellShape.cell() && segments.total() * segments.length <= kFewComparisons) {
    return RowSort::kRanks;
  }
  const bool wide = width == 8 && has_payload;  // their blocks are slower, and no better than those for segments
  const bool one_small_cell = !wide && segments.length <= kFewItemsShape.cell();
  if ((segments.total() <= kFewItems || one_small_cell) && fills(kFewItemsShape)) return RowSort::kFewItems;
  if (!wide && segments.length <= kOneCellShape.cell()) {
    return fills(kOneCellShape) ? RowSort::kOneCell : RowSort::kSegments;
  }
  if (!nearly_sorted && is_for_pairs(segments.total(), width + payload_width)) {
    return fills(pairs_shape(width, has_payload)) ? RowSort::kPairs : RowSort::kSegments;
  }
  if (wide || (has_payload && !nearly_sorted && (width != 4 || payload_width != 4))) return RowSort::kSegments;
  return fills(row_shape(width, has_payload)) ? RowSort::kLong : RowSort::kSegments;
}

SegmentedSortOperands::Scratch SegmentedSortOperands::layout(Workspace& workspace) const {
  const int64_t total = segments.total();
  const int width = byte_width(key_type);
  Scratch scratch{};
  scratch.rounds = workspace.take<int>(kCounters);
  const RowSort sort = row_sort();
  const bool one_cell = sort == RowSort::kFewItems && segments.length <= kFewItemsShape.cell();
  if (sort == RowSort::kRanks || sort == RowSort::kOneCell || one_cell) return scratch;
  scratch.keys = workspace.take<char>(total * width);
  scratch.payload = workspace.take<char>(total * payload_width);
  if (sort == RowSort::kFewItems) return scratch;
  if (sort == RowSort::kLong) {
    const RowShape shape = row_shape(width, payload_width > 0);
    int64_t merges = segments.rows * ceil_div<int64_t>(segments.length, shape.tile());
    if (nearly_sorted) {
      const int64_t cells = segments.rows * ceil_div<int64_t>(segments.length, shape.cell());
      merges += cells;  // segments share tiles
      scratch.cuts = workspace.take<CellCut>(cells);
      scratch.groups = workspace.take<RunGroup>(cells);
      for (GroupTile*& tiles : scratch.group_tiles) tiles = workspace.take<GroupTile>(merges);
    }
    scratch.splits = workspace.take<int64_t>(kRuns * merges);
  }
  // For long rows too: a device may have too little shared memory for their kernels.
  const int64_t tiles = ceil_div<int64_t>(total, tile_items(width));
  scratch.tiles = workspace.take<TileDescriptor>(tiles + 1);
  scratch.plans = workspace.take<MergePlan>(tiles);
  return scratch;
}

int64_t workspace::segmented_sort(const Call& call) { return layout_bytes(SegmentedSortOperands(call)); }

}  // namespace mgpu
