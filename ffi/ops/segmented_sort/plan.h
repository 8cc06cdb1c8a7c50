// How CUDA sorts: the shapes of blocks and tiles, the ways to sort, and the scratch memory of each. The table that
// chooses a way is in plan.cc.
#pragma once

#include "algorithm/digits.h"
#include "algorithm/run_split.h"
#include "cuda/tile_shape.h"
#include "ops/segmented_sort/operands.h"

namespace mgpu {

class Workspace;
struct Traits;

// ---- Segments: tiles that are sorted, then merged.
// Keys of 16 bytes are those of a caller's order. A merging block of them fills the 64 KB of the smallest devices.
constexpr TileShape tile_shape(int key_width) { return {256, key_width == 16 ? 7 : key_width == 8 ? 11 : 17}; }
constexpr int tile_items(int key_width) { return tile_shape(key_width).tile(); }

// ---- Whole rows, without heads, by kernels of their own: blocks of `sort` sort cells, blocks of `merge` merge tiles
// of a cell's half or fewer. One thread of a merging block is spare: its two merges of the first level, each dealt out
// by whole threads, take one more.
struct RowShape {
  TileShape sort;
  TileShape merge;
  int runs = 4;  // that a round merges
  constexpr int cell() const { return sort.threads * sort.items; }
  constexpr int tile() const { return cell() / ceil_div(cell(), (merge.threads - 1) * merge.items); }
};
constexpr RowShape row_shape(int key_width, bool has_payload) {
  if (key_width == 8) return {{512, 16}, {256, 17}};
  return {{512, key_width == 4 && !has_payload ? 32 : 16}, {256, 33}};
}
// Of so few items that all blocks run at once, a round takes as long as one of them: merging two runs, whose block
// finds its tile's edges by itself, takes less than half of what merging four does.
constexpr RowShape pairs_shape(int key_width, bool has_payload) {
  if (key_width == 8 && has_payload) return {{512, 4}, {256, 9}, 2};
  return {row_shape(key_width, has_payload).sort, {256, 17}, 2};
}
// Rows that fit one cell of this shape take one launch.
constexpr RowShape kOneCellShape{{512, 8}, {256, 9}};
// For few items, whose sort waits for one launch and one memory latency after the other. The runs are merged by ranks:
// a warp of `merge` finds the places of so many items of each lane.
constexpr RowShape kFewItemsShape{{256, 4}, {128, 2}};
// What a block of these kernels asks for at most, in the sizes that devices grant: sm_75 64 KB, sm_86 99 KB.
constexpr int64_t row_shared_bytes(int key_width, bool has_payload, bool pairs) {
  const bool is_narrow = key_width < 4 && !(key_width == 2 && has_payload && !pairs);
  return (is_narrow || (key_width == 8 && has_payload) ? 64 : 99) << 10;
}

// The threads that sort a row in a block that sorts several, a power of two of warps, and the items for which they have
// room.
MGPU_HOST_DEVICE constexpr int packed_row_threads(int64_t length, TileShape cell) {
  constexpr int kWarp = 32;
  return kWarp << ceil_log2(ceil_div<int64_t>(length, kWarp * cell.items));
}
constexpr int64_t packed_slot(int64_t length, RowShape shape) {
  return int64_t{packed_row_threads(length, shape.sort)} * shape.sort.items;
}

// A block that sorts a row by digits: at most so many threads, each of at most so many items. Few rows gain nothing by
// more threads of fewer items: each warp has counts of its own to add up.
constexpr int kRowDigitItems = 16;
constexpr int kRowDigitThreads = 1024;
constexpr int row_digit_threads(int64_t length) {
  int threads = kDigits;  // each adds up the counts of a digit
  while (threads < kRowDigitThreads && int64_t{threads} * kRowDigitItems < length) threads *= 2;
  return threads;
}
// The shared memory of such a block: the counters of the warps, and the row's items or, where digits are looked up, the
// places and ranks of those that there are.
constexpr int row_digit_bytes(int64_t length, int item_bytes, bool looks_up) {
  const int threads = row_digit_threads(length);
  const int items = looks_up ? static_cast<int>(ceil_div<int64_t>(length, threads)) : kRowDigitItems;
  return threads / 32 * kDigits * static_cast<int>(sizeof(unsigned)) + threads * items * item_bytes;
}
constexpr int kRowDigitStaticBytes = 64;  // beside these

// ---- Sorts by digits: blocks put tiles in the order of one.
struct DigitShape {
  TileShape tiles;
  int blocks;      // that a multiprocessor should hold
  int window = 8;  // tiles that a look-back reads at once
  constexpr int tile() const { return tiles.tile(); }
};
// A tile has an odd multiple of the number of digits, or twice that: where all are as frequent, lanes that write to
// shared memory would meet in a bank otherwise.
constexpr DigitShape digit_shape(int key_width, int payload_width, bool few_items = false) {
  const int registers = maximum(key_width, 4) / 4 + payload_width / 4;  // of an item
  if (registers == 1) return {{384, key_width == 4 ? 23 : key_width == 2 ? 27 : 21}, 3};
  if (registers == 2) return {{512, key_width == 4 ? 19 : 15}, 2};
  if (registers == 4) return {{512, 9}, 2};
  // Longer tiles take 5.04 ms for 2^26 pairs, which took 5.22, and 139 us for 2^20, which take 131.
  return {{512, key_width == 8 && !few_items ? 13 : 11}, 2};
}
// What a block asks for at most: the counters of its warps, the starts of digits and a tile, or the counters of the
// kernel that counts all digits.
constexpr int64_t digit_shared_bytes(int key_width, int payload_width) {
  constexpr int kCopies = 8;
  const DigitShape shape = digit_shape(key_width, payload_width);
  const int64_t warp_counts = shape.tiles.threads / 32 * kDigits * int64_t{4}, starts = kDigits * 8;
  const int64_t scatter = warp_counts + starts + shape.tile() * int64_t{key_width + payload_width} + 128;
  return maximum<int64_t>(scatter, key_width * kDigits * kCopies * 4 + 1024);
}

// ---- What the kernels tell each other.

// A phase of the sort of nearly sorted rows takes this many rounds, and so many cells to a group.
constexpr int kPhaseRounds = 2;
constexpr int kGroupCells = 1 << (2 * kPhaseRounds);

// Runs to merge in a round of a phase, as positions in a row.
struct RunGroup {
  MergeGroup<int64_t> runs;
  int64_t row_begin;
  int source, target;  // buffers
  bool decode;         // the outputs are keys, not codes
};

// A tile of a group's outputs.
struct GroupTile {
  int group;
  int tile;
};

// Where a cell is cut in a phase: its items before `low` belong to the segment that comes in from the left, those from
// `high` on to the one that goes on to the right. The segments' first rounds take them from these buffers.
struct CellCut {
  int64_t low, high;
  int left_start, right_start;
};

// The segment of a tile's first position, and the first listed head at or after that position.
struct TileDescriptor {
  static constexpr int kByDigits = -1;

  Range<int64_t> segment;
  int64_t listed;
  int64_t first_tile;       // in which the segment starts
  int rounds;               // that the segment takes, or kByDigits
  int32_t is_left_out = 0;  // a segment by digits whose first whole tile this is overlaps others

  // The first tile that starts in a segment, if any does.
  MGPU_HOST_DEVICE int64_t first_start(int tile_width) const { return ceil_div<int64_t>(segment.begin, tile_width); }
};

// One segment's part of a tile of outputs in one round of merging: outputs [begin, end) of the tile come from four
// runs, of which `count` items each are brought to shared memory, to positions `at` on: what lies there at position i
// was at from + i in device memory.
struct MergePiece {
  int begin, end;  // empty where there is nothing to do
  uint16_t at[kRuns];
  uint16_t count[kRuns];
  int16_t source;  // buffer; the target is the other
  int16_t decode;  // the segment's last round: the output gets keys, not codes
  // The chunks that hold nothing but the segment's codes. The ones across its edges are read code by code: what lies
  // next to a segment may never have been written.
  uint16_t whole_begin, whole_end;
  int64_t from[kRuns];
};

// A tile with something to merge: the end of a segment that comes in from the left, and the start of one that goes on
// to the right.
struct MergePlan {
  int64_t origin;  // the tile's first position
  MergePiece pieces[2];
};

// What is sorted by digits on its own: a row, or a segment of one.
struct DigitSegment {
  int64_t begin;
  int64_t position;  // in its row
  int64_t size;
  int64_t live;        // of these, the first ones; what lies behind them stays
  int64_t first_tile;  // of all tiles
};

// A tile of a segment: one block's in a pass.
struct alignas(16) DigitTile {
  int64_t begin;     // of the segment
  int64_t position;  // of the segment in its row
  int segment;
  int index;        // in the segment
  int size;         // of its live items
  uint32_t passes;  // that the segment takes, a bit each
};

// How much there is of the segments that are sorted by digits: one word, so that one atomic addition counts both.
struct alignas(8) DigitTotals {
  uint32_t tiles;
  uint32_t segments;
};

// What the kernels that sort by digits tell each other.
struct DigitCounts {
  uint64_t* tickets;
  unsigned* counted;
  uint32_t* taken;
  DigitTotals* totals;
  void* starts;            // as in the problem of the kernels; 4 bytes each, or 8 for rows of 2^30 items and more
  int64_t zeroed_bytes;    // of these five, before the first kernel
  int64_t starts_bytes;    // of the last of them
  void* sums;              // as starts; zeroed by the kernel that counts
  uint32_t* passes;        // of whole rows
  DigitSegment* segments;  // these two are of segments, else null
  DigitTile* tiles;
  int64_t most_tiles;  // of all segments

  // Those of whole rows.
  static DigitCounts take(Workspace& workspace, int64_t rows, int64_t length, int places, int tile,
                          int64_t offset_bytes);
  // Those of so many segments at most.
  static DigitCounts take_listed(Workspace& workspace, int64_t segments, int64_t total, int places, int tile);
};

// Scratch memory: the other buffer of rounds and passes, a descriptor a tile, where runs are split at the start of each
// tile.
struct SortScratch {
  static constexpr int64_t kCounters = 64;
  void* keys;
  void* payload;
  TileDescriptor* tiles;
  int* rounds;  // kCounters counters: the rounds, and the queued tiles of each; of whole rows a flag, and the phases'
  int64_t zeroed_bytes;  // from the rounds on, before the kernels for segments
  MergePlan* plans;
  int64_t* splits;  // kRuns a tile
  CellCut* cuts;    // of nearly sorted rows
  RunGroup* groups;
  GroupTile* group_tiles[kPhaseRounds];
  DigitCounts digits;
};

// ---- The ways to sort.
enum class SortVariant {
  kRanks,                 // by counting, for each item, what comes before it
  kPackedRows,            // several rows to a cell
  kRowDigits,             // by digits, a row to a block
  kRowRanks,              // the same, of places: the digits are looked up in ranks
  kDigits,                // by digits
  kFewItems,              // in small cells, merged by ranks
  kOneCell,               // a row is a cell
  kPairs,                 // in cells, which are merged in pairs
  kLongRows,              // in large cells, of which four are merged at once
  kNearlySorted,          // the same, of overlaps alone
  kNearlySortedOrDigits,  // the same, or by digits: the device looks at some keys
  kSegments,              // in tiles on a fixed grid, of whatever segments
  kLongSegments,          // the same of the short ones; the device lists the long ones, which go by digits
  kSegmentsByDigits,      // all segments by digits
};

class SortPlan {
 public:
  // The first row of the table whose condition holds and whose kernels the device has room for.
  SortPlan(const SegmentedSortOperands& operands, const Traits& traits);
  // A way that the table is not asked for.
  SortPlan(const SegmentedSortOperands& operands, SortVariant variant) : operands_(operands), variant_(variant) {}

  // Scratch memory that is enough on any device.
  static int64_t workspace_bytes(const SegmentedSortOperands& operands);

  const SegmentedSortOperands& operands() const { return operands_; }
  SortVariant variant() const { return variant_; }
  const char* name() const { return name_; }
  const char* condition() const { return condition_; }

  int digit_places() const;
  int first_place() const;  // the lowest of these
  bool has_long_offsets() const;
  bool has_few_digit_items() const;
  int digit_tile() const;
  bool packs_large_cells() const;
  // Segments of so many items are left to the kernels that sort by digits; INT64_MAX if none are.
  int64_t least_long_segment() const;

  SortScratch layout(Workspace& workspace) const;

 private:
  DigitCounts take_digit_counts(Workspace& workspace) const;
  // As DigitProblem::kSavesMemory. What is zeroed lies right before the memory for keys, where digits are counted.
  void take_keys_behind_counts(Workspace& workspace, SortScratch& scratch) const;
  void take_digits(Workspace& workspace, SortScratch& scratch) const;

  const SegmentedSortOperands& operands_;
  SortVariant variant_;
  const char* name_ = "";
  const char* condition_ = "";
};

}  // namespace mgpu
