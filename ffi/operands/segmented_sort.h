// The call of segmented_sort as its kernels see it: the same on both platforms.
#pragma once

#include "algorithm/run_split.h"
#include "algorithm/segments.h"
#include "cuda/tunings.h"
#include "dtype.h"
#include "operands/payload.h"

namespace mgpu {

struct Call;
class Workspace;

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
// The items of a segment that is sorted by digits whatever the others are: where are_segments_for_digits has it of
// their mean.
constexpr int64_t long_segment(int places) {
  int64_t items = 1;
  while (!are_segments_for_digits(int64_t{1} << 62, items, places)) items *= 2;
  return items;
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

// kMerging: whole rows by merging, segments in the fastest way. kNearlySorted: by merging, with a look at what is in
// its place already. kPartitioning: in the order of the highest `bits` bits at least; items that share these may come
// in any order, but equal ones stay in theirs.
enum class SortMethod : int64_t { kMerging, kFastest, kNearlySorted, kPartitioning };

// Operands: keys [.., n], heads [.., m], flags [.., n] bool or [.., ceil(n / 32)] uint32, count [.., 1], payload
// [.., n]; any but the keys may be absent (empty). Attributes: descending, method, bits, payload. Results: keys, and
// the payload.
struct SegmentedSortOperands {
  DType key_type;
  bool descending;
  SortMethod method;  // without heads and flags, unless it is by merging
  int bits;           // of the keys that may differ, the lowest; of a partition, the highest
  PayloadMode payload_mode;
  int payload_width = 0;  // bytes; 0 without payload
  Segments segments;
  bool has_flags;
  bool whole_rows;               // without heads and flags
  bool within_segments = false;  // by the kernels for segments, whatever the rows
  const void* keys;
  const void* payload;  // null unless given
  void* sorted_keys;
  void* sorted_payload;

  explicit SegmentedSortOperands(const Call& call);

  // The length of a row where the payload is the indices of its items, else 0.
  int64_t index_row_length() const { return payload_mode == PayloadMode::kIndices ? segments.length : 0; }

  // Whether several short rows share a cell, and whether that is one of kOneCellShape, not of kFewItemsShape.
  bool packs_rows() const;
  bool packs_large_cells() const;
  // Whether rows are sorted by digits, each in a block.
  bool sorts_rows_by_digits() const;
  // How whole rows are sorted. kSegments: by the kernels for segments, which are as fast for many items with wide
  // payload or narrow keys, and fill their tiles with short rows. kRanks: by counting, for each item, what comes before
  // it. kPackedRows: several rows to a cell. kRowDigits: by digits, a row to a block. kFewItems: in small cells, merged
  // by ranks. kOneCell: a row is a cell. kPairs, kLong: in large cells. kDigits: by digits. Segments take kSegments, or
  // kDigits where heads list few of them.
  enum class RowSort { kSegments, kRanks, kPackedRows, kRowDigits, kFewItems, kOneCell, kPairs, kLong, kDigits };
  RowSort row_sort() const;

  int digit_places() const { return ceil_div(bits, kDigitBits); }
  // The lowest of these places.
  int first_place() const { return method == SortMethod::kPartitioning ? byte_width(key_type) - digit_places() : 0; }
  // Whether rows of nearly sorted items are sorted by digits where samples tell that they are not nearly sorted.
  bool may_turn_to_digits() const;
  // Whether kSegments merges the short segments alone, and leaves long ones to the kernels that sort by digits.
  bool may_have_long_segments() const;

  bool has_long_offsets() const { return segments.length >= int64_t{1} << 30; }
  int64_t digit_offset_bytes() const { return has_long_offsets() ? 8 : 4; }
  bool has_few_digit_items() const { return whole_rows && segments.total() < kFewDigitItems; }
  int digit_tile() const { return digit_shape(byte_width(key_type), payload_width, has_few_digit_items()).tile(); }

  // Scratch memory of the CUDA kernels: the other buffer of the merge rounds, and a descriptor a tile; or where the
  // runs are split at the start of each tile.
  struct Scratch {
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
  static constexpr int64_t kCounters = 64;
  Scratch layout(Workspace& workspace) const;

 private:
  DigitCounts take_digit_counts(Workspace& workspace) const;
  // As DigitProblem::kSavesMemory. What is zeroed lies right before the memory for keys, where digits are counted.
  bool saves_digit_memory() const;
  void take_keys_behind_counts(Workspace& workspace, Scratch& scratch) const;
};

}  // namespace mgpu
