#include "operands/segmented_sort.h"

#include "cpu/tunings.h"
#include "cuda/tunings.h"
#include "operands/dispatch.h"
#include "operands/read.h"

namespace mgpu {

namespace {

DigitCounts take_counts(Workspace& workspace, int64_t segments, int64_t tiles, int places, int64_t offset_bytes) {
  const int64_t begin = workspace.used();
  DigitCounts counts{};
  counts.most_tiles = tiles;
  counts.tickets = workspace.take<uint64_t>(places);
  counts.counted = workspace.take<unsigned>(segments);
  counts.taken = workspace.take<uint32_t>(1);
  counts.totals = workspace.take<DigitTotals>(1);
  const int64_t starts = workspace.used();
  counts.starts = workspace.take<char>(segments * places * kDigits * offset_bytes);
  counts.starts_bytes = workspace.used() - starts;
  counts.zeroed_bytes = workspace.used() - begin;
  counts.sums = workspace.take<char>(tiles * kDigits * offset_bytes);
  return counts;
}

// Whether rows with payload are sorted by digits that are looked up in ranks.
bool sorts_rows_by_ranks(const SegmentedSortOperands& operands) {
  // Merging shares few rows among more blocks. Rows that are nearly in order it merges in less time.
  constexpr int64_t kFewRows = 64;
  const int64_t length = operands.segments.length, rows = operands.segments.rows;
  const int width = byte_width(operands.key_type);
  if (operands.payload_width == 0 || width < 4 || operands.method != SortMethod::kFastest) return false;
  if (rows < kFewRows || length <= 1024) return false;
  if (width == 4) return true;
  // Eight digits of a short row take its block as long as merging takes many rows, or a few with many blocks.
  return operands.segments.total() > kFewItems && (length > 2048 || rows <= 2048);
}

const Enumeration kMethods{"sort_method", {"merging", "fastest", "nearly_sorted", "partitioning"}};

}  // namespace

DigitCounts DigitCounts::take(Workspace& workspace, int64_t rows, int64_t length, int places, int tile,
                              int64_t offset_bytes) {
  DigitCounts counts = take_counts(workspace, rows, rows * ceil_div<int64_t>(length, tile), places, offset_bytes);
  counts.passes = workspace.take<uint32_t>(rows);
  return counts;
}

DigitCounts DigitCounts::take_listed(Workspace& workspace, int64_t segments, int64_t total, int places, int tile) {
  // A segment has one tile at most that it does not fill.
  DigitCounts counts = take_counts(workspace, segments, total / tile + segments, places, sizeof(uint32_t));
  counts.segments = workspace.take<DigitSegment>(segments);
  counts.tiles = workspace.take<DigitTile>(counts.most_tiles);
  return counts;
}

const Signature signature::segmented_sort{
    .operands = {"keys", "heads", "flags", "count", "values"},
    .results = {"keys", "values"},
    .attributes = {{"descending"}, {"method", &kMethods}, {"bits", &kNumber}, {"payload", &kPayloadValues}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["segmented_sort"] = {cpu::kSortTile};
          sizes["sort_cells"] = {kOneCellShape.cell(), kFewItemsShape.cell()};
          for (int64_t threads = kDigits; threads <= kRowDigitThreads; threads *= 2) {
            sizes["sort_row_digits"].insert(threads * kRowDigitItems);
          }
          for (int width : kKeyWidths) {
            for (int payload_width : {0, 4, 8}) {
              for (bool few : {false, true}) sizes["sort_digits"].insert(digit_shape(width, payload_width, few).tile());
            }
            sizes["sort_items"].insert(tile_shape(width).items);
            sizes["segmented_sort"].insert(tile_items(width));
            for (bool has_payload : {false, true}) {
              for (const RowShape& shape : {row_shape(width, has_payload), pairs_shape(width, has_payload)}) {
                sizes["sort_cells"].insert(shape.cell());
                sizes["sort_rows"].insert(shape.tile());
              }
            }
          }
        },
    .plan =
        [](const Call& call, const Traits&) {
          static const char* const kNames[] = {"segments", "ranks", "packed rows", "row digits", "few items",
                                               "one cell", "pairs", "long rows",   "digits"};
          const SegmentedSortOperands operands(call);
          PlanReport report;
          report.variant = kNames[static_cast<int>(operands.row_sort())];
          if (operands.may_turn_to_digits()) report.variant += ", or digits";
          if (operands.may_have_long_segments()) report.variant += ", long ones by digits";
          return report;
        },
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
  call.expect(bits > 0 && bits <= 8 * byte_width(key_type), "bits: expected no more than the keys have");
  segments.length = Call::length(keys_out);
  segments.rows = Call::batch(keys_out, 1);
  call.expect(in["keys"].size() == segments.total(), "keys: expected the shape of the result");
  keys = in["keys"].data;
  sorted_keys = keys_out.data;

  segments.heads_count = Call::length(heads);
  segments.heads = call.index_vector(heads, "heads");
  segments.heads_stride = call.row_stride(heads, segments.heads_count, segments.rows, "heads");
  has_flags = Call::length(flags) > 0;
  whole_rows = segments.heads_count == 0 && !has_flags;
  call.expect(whole_rows || method == SortMethod::kMerging, "method: expected neither heads nor flags");
  call.expect(method != SortMethod::kPartitioning || byte_width(key_type) == 4, "method: expected keys of 4 bytes");
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
    call.expect(payload_out.size() == segments.total(), "payload: expected the shape of the keys");
    if (payload_mode == PayloadMode::kGiven) {
      call.expect(in["values"].size() == segments.total(), "payload: expected the shape of the keys");
      payload = in["values"].data;
    }
  }
}

SegmentedSortOperands::RowSort SegmentedSortOperands::row_sort() const {
  if (within_segments || has_flags) return RowSort::kSegments;
  const int width = byte_width(key_type);
  const bool has_payload = payload_width > 0;
  if (!whole_rows) {
    const int64_t mean = segments.length / (segments.heads_count + 1);
    if (has_long_offsets()) return RowSort::kSegments;  // such segments are rare, and their kernels not compiled
    const bool by_digits = are_segments_for_digits(segments.total(), mean, digit_places());
    return by_digits ? RowSort::kDigits : RowSort::kSegments;
  }
  if (sorts_rows_by_digits()) return RowSort::kRowDigits;
  const auto fills = [&](RowShape shape) {
    const int64_t cell = shape.cell();
    return segments.rows == 1 || ceil_div(segments.length, cell) * cell <= 2 * segments.length;
  };
  const int64_t comparisons = segments.total() * segments.length;
  // A row that is sorted by ranks has a block of its own, which takes 0.6 ns. More rows share the tiles of the kernels
  // for segments: 2^20 rows of 4 keys of 4 bytes take 36 us for 650.
  constexpr int64_t kFewRows = int64_t{1} << 15;
  const bool has_few_comparisons =
      segments.length <= kOneCellShape.cell() && segments.rows <= kFewRows && comparisons <= kFewComparisons;
  const bool wide = width == 8 && has_payload;  // their cells are slower, and large ones no better than segments
  if (packs_rows() && !(has_few_comparisons && (wide || comparisons <= kFewComparisons / 4))) {
    return RowSort::kPackedRows;
  }
  if (has_few_comparisons) return RowSort::kRanks;
  const bool nearly_sorted = method == SortMethod::kNearlySorted;
  const bool merges_overlaps = nearly_sorted && width >= 4 && (!has_payload || (width == 4 && payload_width == 4));
  if (method != SortMethod::kMerging && !merges_overlaps &&
      is_for_digits(segments.total(), segments.length, digit_places(), has_payload)) {
    return RowSort::kDigits;
  }
  // Wide cells take longer, but half as long as two in one where there are no more than the device has room for.
  constexpr int64_t kFewWideItems = int64_t{1} << 20;
  const bool one_small_cell =
      segments.length <= kFewItemsShape.cell() && (!wide || segments.rows * kFewItemsShape.cell() <= kFewWideItems);
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

bool SegmentedSortOperands::packs_rows() const {
  constexpr int64_t kShortest = 64, kLongest = 512;
  constexpr int64_t kNotMany = int64_t{1} << 20;
  if (segments.rows == 1 || segments.length < kShortest || segments.length > kLongest) return false;
  // The kernels for segments take 20 us for any rows. From there on what counts is how much of a cell is filled.
  const int width = byte_width(key_type);
  if (width == 8) return segments.total() <= (payload_width > 0 ? kFewItems : kNotMany);
  return segments.total() <= kNotMany || 4 * segments.length >= 3 * packed_slot(segments.length, kFewItemsShape);
}

bool SegmentedSortOperands::sorts_rows_by_digits() const {
  constexpr int64_t kLongest = kRowDigitThreads * kRowDigitItems;
  const int places = digit_places();
  const int64_t length = segments.length, total = segments.total();
  if (segments.rows == 1 || length > kLongest) return false;
  if (method == SortMethod::kMerging || method == SortMethod::kPartitioning) return false;
  if (places > 2) return sorts_rows_by_ranks(*this);
  // A digit costs a row as much as 500 items. Merging shares few long rows among more blocks. A block needs longer for
  // codes of floats.
  const bool is_long = length > kLongest / 2;
  if (places == 1) return length > 512 && total > int64_t{1} << (is_long ? 15 : 12);
  const bool is_float = key_kind(key_type) == KeyKind::kFloat;
  // Merging takes longer for floats of 16 bits, whose zeros are equal, and not for integers with payload.
  if (length <= 1024) {
    const bool merges_slowly = byte_width(key_type) == 2 && (is_float || payload_width == 0);
    return length > 512 && total >= int64_t{1} << 18 && merges_slowly;
  }
  const int least = is_long ? 18 : is_float && length > 2048 ? 17 : 14;
  const bool fills_merged_cell = byte_width(key_type) == 4 && payload_width == 0 && 4 * length > 3 * kLongest;
  return total >= int64_t{1} << least && !fills_merged_cell;
}

bool SegmentedSortOperands::packs_large_cells() const {
  const int64_t slot = packed_slot(segments.length, kOneCellShape);
  // Of fewer items, large cells would leave multiprocessors without a block.
  return 2 * segments.length > slot && segments.rows * slot > kFewItems;
}

bool SegmentedSortOperands::may_turn_to_digits() const {
  return method == SortMethod::kNearlySorted && row_sort() == RowSort::kLong &&
         is_for_digits(segments.total(), segments.length, digit_places(), payload_width > 0);
}

bool SegmentedSortOperands::may_have_long_segments() const {
  // Where no segment is long, passes that do nothing take the place of rounds that do nothing. They take 14 us more of
  // 2^26 items, which is less than 2% if segments are not too short. Keys of 64 bits would take twice as many.
  constexpr int64_t kLeastItems = int64_t{1} << 22;
  constexpr int64_t kLeastMean = 512;
  return !whole_rows && !within_segments && row_sort() == RowSort::kSegments && !has_long_offsets() &&
         segments.total() >= kLeastItems && byte_width(key_type) <= 4 &&
         segments.length >= long_segment(digit_places()) && segments.length / (segments.heads_count + 1) >= kLeastMean;
}

DigitCounts SegmentedSortOperands::take_digit_counts(Workspace& workspace) const {
  const int tile = digit_tile();
  if (!whole_rows) {
    const int64_t most =
        may_have_long_segments() ? segments.total() / long_segment(digit_places()) : segments.flat_heads_count();
    return DigitCounts::take_listed(workspace, most, segments.total(), digit_places(), tile);
  }
  return DigitCounts::take(workspace, segments.rows, segments.length, digit_places(), tile, digit_offset_bytes());
}

bool SegmentedSortOperands::saves_digit_memory() const {
  return whole_rows && byte_width(key_type) == 2 && payload_width == 0 && row_sort() == RowSort::kDigits;
}

void SegmentedSortOperands::take_keys_behind_counts(Workspace& workspace, Scratch& scratch) const {
  DigitCounts& counts = scratch.digits;
  const int64_t rows = segments.rows, places = digit_places();
  const int64_t begin = workspace.used();
  counts.most_tiles = rows * ceil_div<int64_t>(segments.length, digit_tile());
  // In one piece: each has 256 bytes at least, 0.05% of the fewest keys.
  auto* const words = reinterpret_cast<uint32_t*>(workspace.take<uint64_t>(places + rows));
  if (words) {
    counts.tickets = reinterpret_cast<uint64_t*>(words);
    counts.counted = words + 2 * places;
    counts.passes = counts.counted + rows;
  }
  counts.starts_bytes = rows * places * kDigits * digit_offset_bytes();
  counts.zeroed_bytes = workspace.used() - begin + counts.starts_bytes;
  scratch.keys = counts.starts = workspace.take<char>(segments.total() * byte_width(key_type));
}

SegmentedSortOperands::Scratch SegmentedSortOperands::layout(Workspace& workspace) const {
  const int64_t total = segments.total();
  const int width = byte_width(key_type);
  Scratch scratch{};
  const int64_t begin = workspace.used();
  scratch.rounds = workspace.take<int>(kCounters);
  scratch.zeroed_bytes = workspace.used() - begin;
  const RowSort sort = row_sort();
  const bool one_cell = sort == RowSort::kFewItems && segments.length <= kFewItemsShape.cell();
  if (sort == RowSort::kRanks || sort == RowSort::kPackedRows || sort == RowSort::kOneCell || one_cell) return scratch;
  if (may_turn_to_digits() || may_have_long_segments()) scratch.digits = take_digit_counts(workspace);
  // Long segments are yet to be found: who lists them clears their starts.
  if (may_have_long_segments()) scratch.zeroed_bytes += scratch.digits.zeroed_bytes - scratch.digits.starts_bytes;
  if (saves_digit_memory()) {
    take_keys_behind_counts(workspace, scratch);
  } else {
    scratch.keys = workspace.take<char>(total * width);
  }
  scratch.payload = workspace.take<char>(total * payload_width);
  if (sort == RowSort::kFewItems) return scratch;
  if (sort == RowSort::kLong) {
    const RowShape shape = row_shape(width, payload_width > 0);
    int64_t merges = segments.rows * ceil_div<int64_t>(segments.length, shape.tile());
    if (method == SortMethod::kNearlySorted) {
      const int64_t cells = segments.rows * ceil_div<int64_t>(segments.length, shape.cell());
      merges += cells;  // segments share tiles
      scratch.cuts = workspace.take<CellCut>(cells);
      scratch.groups = workspace.take<RunGroup>(cells);
      for (GroupTile*& tiles : scratch.group_tiles) tiles = workspace.take<GroupTile>(merges);
    }
    scratch.splits = workspace.take<int64_t>(kRuns * merges);
  }
  // For long rows and digits too: a device may have too little shared memory for their kernels.
  const auto take_tiles = [&](Workspace& from) {
    const int64_t tiles = ceil_div<int64_t>(total, tile_items(width));
    scratch.tiles = from.take<TileDescriptor>(tiles + 1);
    scratch.plans = from.take<MergePlan>(tiles);
  };
  if (sort != RowSort::kDigits) {
    take_tiles(workspace);
    return scratch;
  }
  // Only one of the two is used, so they share memory. One pass goes from the input to the output: its counts take the
  // place of the second buffer.
  Workspace digits, tiles;
  take_tiles(tiles);
  if (saves_digit_memory()) {
    const int64_t words = (scratch.digits.most_tiles - segments.rows) * kDigits * digit_offset_bytes();
    const int64_t bytes = maximum(words, tiles.used());
    char* const shared = workspace.take<char>(bytes);
    Workspace descriptors(shared, bytes);
    scratch.digits.sums = shared;
    take_tiles(descriptors);
    return scratch;
  }
  take_digit_counts(digits);
  if (digit_places() == 1 && digits.used() <= total * width) {
    Workspace keys(scratch.keys, total * width);
    scratch.digits = take_digit_counts(keys);
    take_tiles(workspace);
  } else {
    const int64_t bytes = maximum(digits.used(), tiles.used());
    char* const shared = workspace.take<char>(bytes);
    Workspace counts(shared, bytes), descriptors(shared, bytes);
    scratch.digits = take_digit_counts(counts);
    take_tiles(descriptors);
  }
  return scratch;
}

int64_t workspace::segmented_sort(const Call& call) { return layout_bytes(SegmentedSortOperands(call)); }

}  // namespace mgpu
