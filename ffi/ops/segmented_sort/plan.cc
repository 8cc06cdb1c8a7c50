#include "ops/segmented_sort/plan.h"

#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "runtime/call.h"
#include "runtime/operations.h"
#include "runtime/plan.h"
#include "runtime/signature.h"
#include "runtime/workspace.h"

namespace mgpu {

namespace {

using Problem = SegmentedSortOperands;
using Row = PlanRow<SortVariant, Problem>;

int width(const Problem& problem) { return byte_width(problem.key_type); }
bool has_payload(const Problem& problem) { return problem.payload_width > 0; }
bool is_float(const Problem& problem) { return key_kind(problem.key_type) == KeyKind::kFloat; }
int places(const Problem& problem) { return ceil_div(problem.bits, kDigitBits); }
int64_t length(const Problem& problem) { return problem.segments.length; }
int64_t rows(const Problem& problem) { return problem.segments.rows; }
int64_t total(const Problem& problem) { return problem.segments.total(); }
int64_t mean_segment(const Problem& problem) { return length(problem) / (problem.segments.heads_count + 1); }
bool is_nearly_sorted(const Problem& problem) { return problem.method == SortMethod::kNearlySorted; }
bool has_short_offsets(const Problem& problem) { return length(problem) < int64_t{1} << 30; }
bool is_merged(const Problem& problem) {
  return problem.method == SortMethod::kMerging && merges_pairs(width(problem));
}
bool is_wide(const Problem& problem) { return width(problem) == 8 && has_payload(problem); }

// ---- Segments. By digits, a segment may leave most of its last tile empty, and has 1 KB of counts per place.
constexpr int64_t long_segment(int places) { return int64_t{1} << (places <= 2 ? 14 : places <= 4 ? 15 : 19); }

bool are_long(const Problem& problem) {
  return !problem.whole_rows && !problem.has_flags && has_short_offsets(problem) &&
         total(problem) >= int64_t{1} << 17 && mean_segment(problem) >= long_segment(places(problem));
}

bool may_be_long(const Problem& problem) {
  return !problem.whole_rows && has_short_offsets(problem) && total(problem) >= int64_t{1} << 22 &&
         width(problem) <= 4 && length(problem) >= long_segment(places(problem)) && mean_segment(problem) >= 512;
}

bool are_segments(const Problem& problem) { return !problem.whole_rows; }

// ---- Whole rows, one block each.
constexpr int64_t kLongestByDigits = kRowDigitThreads * kRowDigitItems;

bool may_have_blocks(const Problem& problem) {
  return rows(problem) > 1 && length(problem) <= kLongestByDigits && !is_merged(problem) &&
         problem.method != SortMethod::kPartitioning;
}

// Merging distributes few long rows over more blocks. Floats of more than 16 bits have no kernel for this.
bool are_row_digits(const Problem& problem) {
  if (!may_have_blocks(problem) || places(problem) > 2 || (is_float(problem) && width(problem) > 2)) return false;
  const bool is_long = length(problem) > kLongestByDigits / 2;
  if (places(problem) == 1) return length(problem) > 512 && total(problem) > int64_t{1} << (is_long ? 15 : 12);
  if (length(problem) <= 1024) {
    const bool merges_slowly = width(problem) == 2 && (is_float(problem) || !has_payload(problem));
    return length(problem) > 512 && total(problem) >= int64_t{1} << 18 && merges_slowly;
  }
  const int min_log_items = is_long ? 18 : is_float(problem) && length(problem) > 2048 ? 17 : 14;
  const bool fills_merged_cell =
      width(problem) == 4 && !has_payload(problem) && 4 * length(problem) > 3 * kLongestByDigits;
  return total(problem) >= int64_t{1} << min_log_items && !fills_merged_cell;
}
int64_t row_digits_bytes(const Problem& problem) {
  const bool has_place = has_payload(problem) || width(problem) > 2 || is_float(problem);
  return row_digit_bytes(length(problem), has_place ? 4 : width(problem), false) + kRowDigitStaticBytes;
}

// Merging distributes few rows over more blocks, and is faster for nearly sorted rows.
constexpr int64_t kFewItems = int64_t{1} << 18;
bool are_row_ranks(const Problem& problem) {
  if (!may_have_blocks(problem) || places(problem) <= 2 || !has_payload(problem) || width(problem) < 4) return false;
  if (problem.method != SortMethod::kFastest || rows(problem) < 64 || length(problem) <= 1024) return false;
  return width(problem) == 4 || (total(problem) > kFewItems && (length(problem) > 2048 || rows(problem) <= 2048));
}
int64_t row_ranks_bytes(const Problem& problem) {
  return row_digit_bytes(length(problem), 2 + width(problem), true) + kRowDigitStaticBytes;
}

// ---- Whole rows of few comparisons: each item is compared with the others of its row.
int64_t comparisons(const Problem& problem) { return total(problem) * length(problem); }
bool has_few_comparisons(const Problem& problem) {
  return length(problem) <= kOneCellShape.cell() && rows(problem) <= int64_t{1} << 15 &&
         comparisons(problem) <= int64_t{1} << 24;
}
bool has_fewest_comparisons(const Problem& problem) {
  return has_few_comparisons(problem) && (is_wide(problem) || comparisons(problem) <= int64_t{1} << 22);
}

bool are_packed(const Problem& problem) {
  constexpr int64_t kNotMany = int64_t{1} << 20;
  if (rows(problem) == 1 || length(problem) < 64 || length(problem) > 512) return false;
  if (width(problem) == 8) return total(problem) <= (has_payload(problem) ? kFewItems : kNotMany);
  return total(problem) <= kNotMany || 4 * length(problem) >= 3 * packed_slot(length(problem), kFewItemsShape);
}

// ---- Whole rows by digits. The number of passes does not depend on the length of rows.
bool are_many_for_digits(const Problem& problem) {
  const int count = places(problem);
  const int least_items = count == 1 ? 17 : count == 2 ? 18 : count <= 4 ? 19 : has_payload(problem) ? 20 : 22;
  const int least_row = count <= 4 && has_payload(problem) ? 16 : has_payload(problem) ? 18 : 19;
  if (total(problem) < int64_t{1} << least_items) return false;
  return count <= 2 ? length(problem) > int64_t{1} << 14 : length(problem) >= int64_t{1} << least_row;
}
bool are_for_digits(const Problem& problem) {
  const bool merges_overlaps = is_nearly_sorted(problem) && width(problem) >= 4 &&
                               (!has_payload(problem) || (width(problem) == 4 && problem.payload_width == 4));
  return !is_merged(problem) && !merges_overlaps && are_many_for_digits(problem);
}
int64_t digit_bytes(const Problem& problem) { return digit_shared_bytes(width(problem), problem.payload_width); }

// ---- Whole rows by merging cells.
bool fills(const Problem& problem, const RowShape& shape) {
  const int64_t cell = shape.cell();
  return rows(problem) == 1 || ceil_div(length(problem), cell) * cell <= 2 * length(problem);
}
RowShape pairs(const Problem& problem) { return pairs_shape(width(problem), has_payload(problem)); }
RowShape long_rows(const Problem& problem) { return row_shape(width(problem), has_payload(problem)); }

bool has_few_items(const Problem& problem) {
  constexpr int64_t kFewWideItems = int64_t{1} << 20;
  const int64_t cell = kFewItemsShape.cell();
  const bool is_small_cell = length(problem) <= cell && (!is_wide(problem) || rows(problem) * cell <= kFewWideItems);
  return (total(problem) <= kFewItems || is_small_cell) && fills(problem, kFewItemsShape);
}
bool is_one_cell(const Problem& problem) {
  return merges_pairs(width(problem)) && !is_wide(problem) && length(problem) <= kOneCellShape.cell() &&
         fills(problem, kOneCellShape);
}
bool are_pairs(const Problem& problem) {
  return !is_nearly_sorted(problem) && merges_pairs(width(problem)) &&
         total(problem) * maximum(width(problem) + problem.payload_width, 4) <= int64_t{1} << 24 &&
         fills(problem, pairs(problem));
}
int64_t merged_bytes(const Problem& problem) { return row_shared_bytes(width(problem), has_payload(problem)); }
bool are_long_rows(const Problem& problem) {
  return merges_long_rows(width(problem), problem.payload_width) && fills(problem, long_rows(problem));
}
bool are_nearly_sorted(const Problem& problem) {
  return is_nearly_sorted(problem) && !are_for_digits(problem) && are_long_rows(problem);
}
bool are_nearly_sorted_or_digits(const Problem& problem) {
  return are_nearly_sorted(problem) && are_many_for_digits(problem);
}
int64_t either_bytes(const Problem& problem) { return maximum(merged_bytes(problem), digit_bytes(problem)); }

// A comment before a row gives two times on an H200: without the row, then with it.
constexpr Row kTable[] = {
    // Keys of 4 bytes in segments of 10^6: 2.06 ms to 1.19, with payload 3.32 to 1.81 (2^26 items, 2026-11-21).
    {SortVariant::kSegmentsByDigits, "segments by digits", "heads, and long segments on average", are_long,
     digit_bytes},
    {SortVariant::kLongSegments, "segments, long ones by digits",
     "segments may be long, and 512 items or more on average", may_be_long, digit_bytes},
    {SortVariant::kSegments, "segments", "heads or flags", are_segments},
    // 2^22 uint16 in rows of 4,096: 59 us to 34; int8 61 to 19 (2026-11-26).
    {SortVariant::kRowDigits, "rows by digits", "rows that fit a block, keys of two digits at most", are_row_digits,
     row_digits_bytes},
    // 2^22 float64 with payload in rows of 4,096: 257 us to 130 (2026-11-26).
    {SortVariant::kRowRanks, "rows by digits of ranks", "rows that fit a block, with payload, enough of them",
     are_row_ranks, row_ranks_bytes},
    // 2^10 keys: 4.6 us to 2.7; 2^12 keys: 7.8 us to 5.3.
    {SortVariant::kRanks, "ranks", "few comparisons", has_fewest_comparisons},
    // 2^18 float32 in rows of 128: 23.7 us to 3.5; 2^22 in rows of 200: 82.5 us to 39.4 (2026-11-25).
    {SortVariant::kPackedRows, "packed rows", "rows of 64 to 512 items, few or nearly as long as a slot", are_packed},
    {SortVariant::kRanks, "ranks", "2^24 comparisons at most", has_few_comparisons},
    // 2^26 uint32: 2.3 ms to 1.118 (2026-11-20).
    {SortVariant::kDigits, "digits", "many items, long rows", are_for_digits, digit_bytes},
    // 2^16 keys: 31.8 us to 17.4.
    {SortVariant::kFewItems, "few items", "2^18 items at most, or rows of a small cell", has_few_items},
    // 2^12 keys: 20.1 us to 7.8.
    {SortVariant::kOneCell, "one cell", "rows fit a cell", is_one_cell},
    // 2^20 keys: 71.7 us to 58.8.
    {SortVariant::kPairs, "pairs", "16 MB at most", are_pairs, merged_bytes},
    // 2^26 keys that lie near their places: 1.118 ms to 0.637 (2026-11-24).
    {SortVariant::kNearlySortedOrDigits, "nearly sorted rows, or digits",
     "keys may be nearly sorted; the device takes digits where samples are not", are_nearly_sorted_or_digits,
     either_bytes},
    {SortVariant::kNearlySorted, "nearly sorted rows", "keys may be nearly sorted", are_nearly_sorted, merged_bytes},
    // 2^26 float32: 3.62 ms to 2.17.
    {SortVariant::kLongRows, "long rows", "long rows that are to be merged", are_long_rows, merged_bytes},
    {SortVariant::kSegments, "segments", "all others"},
};

DigitCounts take_counts(Workspace& workspace, int64_t segments, int64_t tiles, int places, int64_t offset_bytes) {
  const int64_t begin = workspace.used();
  DigitCounts counts{};
  counts.max_tiles = tiles;
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

}  // namespace

DigitCounts DigitCounts::take(Workspace& workspace, int64_t rows, int64_t length, int places, int tile,
                              int64_t offset_bytes) {
  DigitCounts counts = take_counts(workspace, rows, rows * ceil_div<int64_t>(length, tile), places, offset_bytes);
  counts.passes = workspace.take<uint32_t>(rows);
  return counts;
}

DigitCounts DigitCounts::take_listed(Workspace& workspace, int64_t segments, int64_t total, int places, int tile) {
  // A segment has at most one tile that it does not fill.
  DigitCounts counts = take_counts(workspace, segments, total / tile + segments, places, sizeof(uint32_t));
  counts.segments = workspace.take<DigitSegment>(segments);
  counts.tiles = workspace.take<DigitTile>(counts.max_tiles);
  return counts;
}

SortPlan::SortPlan(const SegmentedSortOperands& operands, const Traits& traits) : operands_(operands) {
  const Row& row = plan_row(kTable, operands, traits);
  variant_ = row.variant;
  name_ = row.name;
  condition_ = row.condition;
}

int64_t SortPlan::workspace_bytes(const SegmentedSortOperands& operands) {
  return max_bytes(kTable, operands, [&](const Row& row) { return layout_bytes(SortPlan(operands, row.variant)); });
}

int SortPlan::digit_places() const { return places(operands_); }
int SortPlan::first_place() const {
  return operands_.method == SortMethod::kPartitioning ? width(operands_) - digit_places() : 0;
}
bool SortPlan::has_long_offsets() const { return !has_short_offsets(operands_); }
bool SortPlan::has_few_digit_items() const { return operands_.whole_rows && total(operands_) < int64_t{1} << 22; }
int SortPlan::digit_tile() const {
  return digit_shape(width(operands_), operands_.payload_width, has_few_digit_items()).tile();
}
bool SortPlan::packs_large_cells() const {
  const int64_t slot = packed_slot(length(operands_), kOneCellShape);
  // With fewer items, large cells would leave multiprocessors without a block.
  return 2 * length(operands_) > slot && rows(operands_) * slot > kFewItems;
}
int64_t SortPlan::min_long_segment() const {
  return variant_ == SortVariant::kLongSegments ? long_segment(digit_places()) : INT64_MAX;
}

DigitCounts SortPlan::take_digit_counts(Workspace& workspace) const {
  const Segments& segments = operands_.segments;
  const int tile = digit_tile();
  if (operands_.whole_rows) {
    const int64_t offset_bytes = has_long_offsets() ? sizeof(uint64_t) : sizeof(uint32_t);
    return DigitCounts::take(workspace, segments.rows, segments.length, digit_places(), tile, offset_bytes);
  }
  const int64_t max_segments =
      variant_ == SortVariant::kLongSegments ? segments.total() / min_long_segment() : segments.flat_heads_count();
  return DigitCounts::take_listed(workspace, max_segments, segments.total(), digit_places(), tile);
}

void SortPlan::take_keys_behind_counts(Workspace& workspace, SortScratch& scratch) const {
  DigitCounts& counts = scratch.digits;
  const int64_t rows = operands_.segments.rows, places = digit_places();
  const int64_t offset_bytes = has_long_offsets() ? sizeof(uint64_t) : sizeof(uint32_t);
  const int64_t begin = workspace.used();
  counts.max_tiles = rows * ceil_div<int64_t>(length(operands_), digit_tile());
  // One piece, because each piece takes at least 256 bytes.
  auto* const words = reinterpret_cast<uint32_t*>(workspace.take<uint64_t>(places + rows));
  if (words) {
    counts.tickets = reinterpret_cast<uint64_t*>(words);
    counts.counted = words + 2 * places;
    counts.passes = counts.counted + rows;
  }
  counts.starts_bytes = rows * places * kDigits * offset_bytes;
  counts.zeroed_bytes = workspace.used() - begin + counts.starts_bytes;
  scratch.keys = counts.starts = workspace.take<char>(total(operands_) * width(operands_));
  counts.sums = workspace.take<char>((counts.max_tiles - rows) * kDigits * offset_bytes);
}

void SortPlan::take_digits(Workspace& workspace, SortScratch& scratch) const {
  const int64_t key_bytes = total(operands_) * width(operands_);
  if (operands_.whole_rows && width(operands_) == 2 && !has_payload(operands_)) {
    return take_keys_behind_counts(workspace, scratch);
  }
  scratch.keys = workspace.take<char>(key_bytes);
  scratch.payload = workspace.take<char>(total(operands_) * operands_.payload_width);
  // A single pass goes from the input to the output, so the second buffer is free for the counts.
  Workspace counts;
  take_digit_counts(counts);
  if (digit_places() == 1 && counts.used() <= key_bytes) {
    Workspace keys(scratch.keys, key_bytes);
    scratch.digits = take_digit_counts(keys);
  } else {
    scratch.digits = take_digit_counts(workspace);
  }
}

SortScratch SortPlan::layout(Workspace& workspace) const {
  const Segments& segments = operands_.segments;
  const int64_t begin = workspace.used();
  SortScratch scratch{};
  scratch.rounds = workspace.take<int>(SortScratch::kCounters);
  scratch.zeroed_bytes = workspace.used() - begin;
  const auto take_buffer = [&] {
    scratch.keys = workspace.take<char>(segments.total() * width(operands_));
    scratch.payload = workspace.take<char>(segments.total() * operands_.payload_width);
  };
  switch (variant_) {
    case SortVariant::kRanks:
    case SortVariant::kPackedRows:
    case SortVariant::kRowDigits:
    case SortVariant::kRowRanks:
    case SortVariant::kOneCell: break;
    case SortVariant::kDigits:
    case SortVariant::kSegmentsByDigits: take_digits(workspace, scratch); break;
    case SortVariant::kFewItems:
      if (segments.length > kFewItemsShape.cell()) take_buffer();
      break;
    case SortVariant::kPairs: take_buffer(); break;
    case SortVariant::kNearlySortedOrDigits: scratch.digits = take_digit_counts(workspace); [[fallthrough]];
    case SortVariant::kNearlySorted:
    case SortVariant::kLongRows: {
      take_buffer();
      const RowShape shape = long_rows(operands_);
      int64_t merges = segments.rows * ceil_div<int64_t>(segments.length, shape.tile());
      if (variant_ != SortVariant::kLongRows) {
        const int64_t cells = segments.rows * ceil_div<int64_t>(segments.length, shape.cell());
        merges += cells;  // the last tile of a group may be incomplete
        scratch.cuts = workspace.take<CellCut>(cells);
        scratch.groups = workspace.take<RunGroup>(cells);
        for (GroupTile*& tiles : scratch.group_tiles) tiles = workspace.take<GroupTile>(merges);
      }
      scratch.splits = workspace.take<int64_t>(kRuns * merges);
      break;
    }
    case SortVariant::kLongSegments:
      scratch.digits = take_digit_counts(workspace);
      // The kernel that lists long segments clears their starts.
      scratch.zeroed_bytes += scratch.digits.zeroed_bytes - scratch.digits.starts_bytes;
      [[fallthrough]];
    case SortVariant::kSegments: {
      take_buffer();
      const int64_t tiles = ceil_div<int64_t>(segments.total(), tile_items(width(operands_)));
      scratch.tiles = workspace.take<TileDescriptor>(tiles + 1);
      scratch.plans = workspace.take<MergePlan>(tiles);
      break;
    }
  }
  return scratch;
}

void sort_tile_sizes(TileSizes& sizes) {
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
      if (!merges_pairs(width)) continue;
      for (const RowShape& shape : {row_shape(width, has_payload), pairs_shape(width, has_payload)}) {
        sizes["sort_cells"].insert(shape.cell());
        sizes["sort_rows"].insert(shape.tile());
      }
    }
  }
}

PlanReport report_sort(const Call& call, const Traits& traits) {
  const SegmentedSortOperands operands(call);
  const SortPlan plan(operands, traits);
  PlanReport report{plan.name(), plan.condition(), {}, 1, layout_bytes(plan)};
  const auto merge_cells = [&](const RowShape& shape) {
    report.tiles = {{"cell", shape.cell()}, {"tile", shape.tile()}};
    const int rounds = merge_rounds<int64_t>({0, length(operands)}, shape.cell());
    report.passes += shape.runs == 2 ? rounds : (rounds + 1) / 2;
  };
  switch (plan.variant()) {
    case SortVariant::kRanks: break;
    case SortVariant::kPackedRows:
      report.tiles["cell"] = (plan.packs_large_cells() ? kOneCellShape : kFewItemsShape).cell();
      break;
    case SortVariant::kRowDigits:
    case SortVariant::kRowRanks: report.tiles["row"] = row_digit_threads(length(operands)) * kRowDigitItems; break;
    case SortVariant::kDigits:
    case SortVariant::kSegmentsByDigits:
      report.tiles["tile"] = plan.digit_tile();
      report.passes = plan.digit_places() + 0.5;  // counting reads the keys
      break;
    case SortVariant::kFewItems: merge_cells(kFewItemsShape); break;
    case SortVariant::kOneCell: report.tiles["cell"] = kOneCellShape.cell(); break;
    case SortVariant::kPairs: merge_cells(pairs(operands)); break;
    case SortVariant::kNearlySortedOrDigits:
    case SortVariant::kNearlySorted:
    case SortVariant::kLongRows: merge_cells(long_rows(operands)); break;
    case SortVariant::kLongSegments:
    case SortVariant::kSegments:
      const int tile = tile_items(width(operands));
      report.tiles["tile"] = tile;
      report.passes += group_rounds<int64_t>({0, minimum(mean_segment(operands), plan.min_long_segment())}, tile);
      break;
  }
  return report;
}

int64_t workspace::segmented_sort(const Call& call) { return SortPlan::workspace_bytes(SegmentedSortOperands(call)); }

}  // namespace mgpu
