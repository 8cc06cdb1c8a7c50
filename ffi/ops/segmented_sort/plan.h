// How CUDA sorts: the shapes of blocks and tiles, the variants of the sort, and the scratch memory of each.
#pragma once

#include "algorithm/digits.h"
#include "algorithm/run_split.h"
#include "cuda/tile_shape.h"
#include "ops/segmented_sort/operands.h"

namespace mgpu {

class Workspace;
struct Traits;

// ---- Segments: tiles that are sorted, then merged. Keys of 16 bytes have few items
// per thread, so that their merges fit the shared memory of the smallest devices.
constexpr TileShape tile_shape(int key_width) { return {256, key_width == 16 ? 7 : key_width == 8 ? 11 : 17}; }
constexpr int tile_items(int key_width) { return tile_shape(key_width).tile(); }

// ---- Whole rows, without heads. Blocks of shape `sort` sort cells;
// blocks of shape `merge` merge tiles, which are a cell or parts of one.
// A merging block has at least one thread more than its tile needs.
struct RowShape {
  TileShape sort;
  TileShape merge;
  int runs = 4;  // the runs that a block merges in a round
  constexpr int cell() const { return sort.threads * sort.items; }
  constexpr int tile() const { return cell() / ceil_div(cell(), (merge.threads - 1) * merge.items); }
};
constexpr RowShape row_shape(int key_width, bool has_payload) {
  if (key_width == 8) return {{512, 16}, {256, 17}};
  return {{512, has_payload ? 16 : 32}, {256, 33}};
}
// Rows of narrower keys have so few digits that they are sorted by these. With payload, the kernels for segments are as
// fast, unless keys and payload have 4 bytes each.
constexpr bool merges_pairs(int key_width) { return key_width >= 4; }
constexpr bool merges_long_rows(int key_width, int payload_width) {
  return merges_pairs(key_width) && (payload_width == 0 || (key_width == 4 && payload_width == 4));
}
// For few items (kPairs):
// a block merges two runs.
constexpr RowShape pairs_shape(int key_width, bool has_payload) {
  if (key_width == 8 && has_payload) return {{512, 4}, {256, 9}, 2};
  return {row_shape(key_width, has_payload).sort, {256, 17}, 2};
}

constexpr RowShape kOneCellShape{{512, 8}, {256, 9}};
// Small cells. When they are merged, each item finds its own
// position. A lane of a merging warp has `merge.items` items.
constexpr RowShape kFewItemsShape{{256, 4}, {128, 2}};
constexpr int64_t row_shared_bytes(int key_width, bool has_payload) {
  return (key_width == 8 && has_payload ? 64 : 99) << 10;
}

// The threads of a row: a power of two of warps, with room for the row's items.
MGPU_HOST_DEVICE constexpr int packed_row_threads(int64_t length, TileShape cell) {
  constexpr int kWarp = 32;
  return kWarp << ceil_log2(ceil_div<int64_t>(length, kWarp * cell.items));
}
constexpr int64_t packed_slot(int64_t length, RowShape shape) {
  return int64_t{packed_row_threads(length, shape.sort)} * shape.sort.items;
}

// The most items of a thread.
constexpr int kRowDigitItems = 16;
constexpr int kRowDigitThreads = 1024;
constexpr int row_digit_threads(int64_t length) {
  int threads = kDigits;
  while (threads < kRowDigitThreads && int64_t{threads} * kRowDigitItems < length) threads *= 2;
  return threads;
}
// Counters for each warp, and an entry for each item. If digits
// are looked up (kRowRanks), an entry is a position and a rank.
constexpr int row_digit_bytes(int64_t length, int item_bytes, bool looks_up) {
  const int threads = row_digit_threads(length);
  const int items = looks_up ? static_cast<int>(ceil_div<int64_t>(length, threads)) : kRowDigitItems;
  return threads / 32 * kDigits * static_cast<int>(sizeof(unsigned)) + threads * items * item_bytes;
}
constexpr int kRowDigitStaticBytes = 64;

// ---- Radix sorts: in a pass, blocks put tiles in the order of one digit.
struct DigitShape {
  TileShape tiles;
  int blocks;
  int window = 8;  // predecessors that a look-back reads at once
  constexpr int tile() const { return tiles.tile(); }
};
// A tile's size is an odd multiple of 128 or of 512. Otherwise, if all digits are
// equally frequent, lanes that write to shared memory would conflict on a bank.
constexpr DigitShape digit_shape(int key_width, int payload_width, bool few_items = false) {
  const int registers = maximum(key_width, 4) / 4 + payload_width / 4;
  if (registers == 1) return {{384, key_width == 4 ? 23 : key_width == 2 ? 27 : 21}, 3};
  if (registers == 2) return {{512, key_width == 4 ? 19 : 15}, 2};
  if (registers == 4) return {{512, 9}, 2};
  // Many pairs with keys of 8 bytes are faster with 13 items per thread, few with 11.
  return {{512, key_width == 8 && !few_items ? 13 : 11}, 2};
}
// The larger of what a pass needs and what
// the kernel that counts digits needs.
constexpr int64_t digit_shared_bytes(int key_width, int payload_width) {
  constexpr int kCopies = 8;
  const DigitShape shape = digit_shape(key_width, payload_width);
  const int64_t warp_counts = shape.tiles.threads / 32 * kDigits * int64_t{4}, starts = kDigits * 8;
  const int64_t scatter = warp_counts + starts + shape.tile() * int64_t{key_width + payload_width} + 128;
  return maximum<int64_t>(scatter, key_width * kDigits * kCopies * 4 + 1024);
}

// ---- Data that the kernels pass on.

// The sort of nearly sorted rows merges in phases of at most kPhaseRounds rounds, from up to kGroupCells cells to one.
constexpr int kPhaseRounds = 2;
constexpr int kGroupCells = 1 << (2 * kPhaseRounds);

// Runs to merge in a round of a phase, as positions in a row.
struct RunGroup {
  MergeGroup<int64_t> runs;
  int64_t row_begin;
  int source, target;  // the buffers that are read and written
  bool decode;         // whether the outputs are keys, not codes
};

struct GroupTile {
  int group;
  int tile;
};

// Items of a cell before `low` belong to a segment that began to the left, items from `high` on to one that
// continues to the right. The first rounds of these segments read the buffers `left_start` and `right_start`.
struct CellCut {
  int64_t low, high;
  int left_start, right_start;
};

// The segment that holds a tile's first position, and the number of the first head from there on (listed_from).
struct TileDescriptor {
  static constexpr int kByDigits = -1;

  Range<int64_t> segment;
  int64_t listed;
  int64_t first_tile;       // the tile in which the segment starts
  int rounds;               // the rounds that the segment takes, or kByDigits
  int32_t is_left_out = 0;  // 1 in the first tile that starts in a long segment, if this segment is left out

  MGPU_HOST_DEVICE int64_t first_start(int tile_width) const { return ceil_div<int64_t>(segment.begin, tile_width); }
};

// One segment's part of a tile in one round of merging: outputs [begin, end) of the tile come from four runs. `count`
// items of each run are copied to shared memory, to positions from `at` on: position i there holds the item at `from +
// i` in device memory.
struct MergePiece {
  int begin, end;  // empty if there is nothing to do
  uint16_t at[kRuns];
  uint16_t count[kRuns];
  int16_t source;  // the buffer that is read; the other one is written
  int16_t decode;  // whether this is the segment's last round, in which the output gets keys, not codes
  // The chunks that hold only the segment's codes.
  // Chunks across its edges are read code by code.
  uint16_t whole_begin, whole_end;
  int64_t from[kRuns];
};

// The merges of a tile in a round: of a segment that began
// to the left, and of one that continues to the right.
struct MergePlan {
  int64_t origin;
  MergePiece pieces[2];
};

struct DigitSegment {
  int64_t begin;
  int64_t position;  // the position in its row
  int64_t size;
  int64_t live;  // the first `live` items are sorted; the others stay in place
  int64_t first_tile;
};

// The part of a segment that one block scatters in a pass.
struct alignas(16) DigitTile {
  int64_t begin;  // the start of the segment
  int64_t position;
  int segment;
  int index;        // the tile's number in the segment
  int size;         // the tile's number of live items
  uint32_t passes;  // the passes that the segment takes, as a bitmap
};

// One atomic addition counts both.
struct alignas(8) DigitTotals {
  uint32_t tiles;
  uint32_t segments;
};

struct DigitCounts {
  uint64_t* tickets;
  unsigned* counted;
  uint32_t* taken;
  DigitTotals* totals;
  void* starts;          // DigitProblem::starts; 4 bytes each, or 8 for rows of 2^30 items and more
  int64_t zeroed_bytes;  // the bytes from `tickets` to the end of `starts`, which are zeroed before use
  int64_t starts_bytes;
  void* sums;  // as wide as `starts`; the kernel that counts zeroes it
  uint32_t* passes;
  DigitSegment* segments;  // this and `tiles` are null for whole rows
  DigitTile* tiles;
  int64_t max_tiles;

  static DigitCounts take(Workspace& workspace, int64_t rows, int64_t length, int places, int tile,
                          int64_t offset_bytes);
  static DigitCounts take_listed(Workspace& workspace, int64_t segments, int64_t total, int places, int tile);
};

// Scratch memory. SortPlan::layout takes the parts that a variant uses.
struct SortScratch {
  static constexpr int64_t kCounters = 64;
  void* keys;
  void* payload;
  TileDescriptor* tiles;
  int* rounds;           // [kCounters]: counters and flags
  int64_t zeroed_bytes;  // the bytes from `rounds` on that are zeroed before the kernels for segments
  MergePlan* plans;
  int64_t* splits;  // kRuns for each tile
  CellCut* cuts;
  RunGroup* groups;
  GroupTile* group_tiles[kPhaseRounds];
  DigitCounts digits;
};

// ---- The variants of the sort.
enum class SortVariant {
  kRanks,                 // counts the items before each item
  kPackedRows,            // several rows share a cell
  kRowDigits,             // radix sort, one row per block
  kRowRanks,              // radix sort of positions, one row per block; digits are looked up (Order::rank)
  kDigits,                // radix sort
  kFewItems,              // small cells; in a merge, each item finds its position
  kOneCell,               // a row fits a cell
  kPairs,                 // cells, which are merged in pairs
  kLongRows,              // large cells, of which four are merged at once
  kNearlySorted,          // like kLongRows, but only overlaps are merged
  kNearlySortedOrDigits,  // kNearlySorted or a radix sort: the device samples keys to choose
  kSegments,              // tiles on a fixed grid, for any segments
  kLongSegments,          // like kSegments for short segments; the device lists the long ones for radix sorts
  kSegmentsByDigits,      // radix sorts of all segments
};

class SortPlan {
 public:
  SortPlan(const SegmentedSortOperands& operands, const Traits& traits);
  SortPlan(const SegmentedSortOperands& operands, SortVariant variant) : operands_(operands), variant_(variant) {}

  static int64_t workspace_bytes(const SegmentedSortOperands& operands);

  const SegmentedSortOperands& operands() const { return operands_; }
  SortVariant variant() const { return variant_; }
  const char* name() const { return name_; }
  const char* condition() const { return condition_; }

  int digit_places() const;
  int first_place() const;  // the lowest place that is sorted
  bool has_long_offsets() const;
  bool has_few_digit_items() const;
  int digit_tile() const;
  bool packs_large_cells() const;
  // Returns INT64_MAX unless the variant is kLongSegments.
  int64_t min_long_segment() const;

  SortScratch layout(Workspace& workspace) const;

 private:
  DigitCounts take_digit_counts(Workspace& workspace) const;
  // Digits are counted at the start of the memory for keys, right after the other zeroed memory
  // (DigitProblem::kSavesMemory).
  void take_keys_behind_counts(Workspace& workspace, SortScratch& scratch) const;
  void take_digits(Workspace& workspace, SortScratch& scratch) const;

  const SegmentedSortOperands& operands_;
  SortVariant variant_;
  const char* name_ = "";
  const char* condition_ = "";
};

}  // namespace mgpu
