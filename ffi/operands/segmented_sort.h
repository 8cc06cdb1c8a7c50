// The call of segmented_sort as its kernels see it: the same on both platforms.
#pragma once

#include "algorithm/run_split.h"
#include "algorithm/segments.h"
#include "call.h"
#include "operands/dispatch.h"
#include "workspace.h"

namespace mgpu {

// A CUDA block sorts and merges tiles of this many items, by the keys' width in bytes: threads times items a thread,
// the latter odd, so that lanes reading their items from shared memory meet different banks.
struct TileShape {
  int threads;
  int items;
};
constexpr TileShape tile_shape(int key_width) { return key_width == 8 ? TileShape{256, 11} : TileShape{256, 17}; }
constexpr int tile_items(int key_width) { return tile_shape(key_width).threads * tile_shape(key_width).items; }

// Whole rows, without heads, are sorted by kernels of their own: blocks of `sort` sort cells, blocks of `merge` merge
// tiles of a cell's half or fewer. One thread of a merging block is spare: its two merges of the first level, each
// dealt out by whole threads, take one more.
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
constexpr bool is_for_pairs(int64_t items, int item_bytes) {
  return items * maximum(item_bytes, 4) <= int64_t{1} << 24;
}
// Rows that fit one cell of this shape take one launch.
constexpr RowShape kOneCellShape{{512, 8}, {256, 9}};
// For few items, whose sort waits for one launch and one memory latency after the other. The runs are merged by ranks:
// a warp of `merge` finds the places of so many items of each lane.
constexpr RowShape kFewItemsShape{{256, 4}, {128, 2}};
constexpr int64_t kFewItems = int64_t{1} << 18;
// So few comparisons are made at once, those of every two items of a row.
constexpr int64_t kFewComparisons = int64_t{1} << 24;

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
  Range<int64_t> segment;
  int64_t listed;
  int64_t first_tile;  // in which the segment starts
  int rounds;          // that the segment takes
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

// Operands: keys [.., n], heads [.., m], flags [.., n] bool or [.., ceil(n / 32)] uint32, count [.., 1], payload
// [.., n]; any but the keys may be absent (empty). Attributes: descending, nearly_sorted, payload. Results: keys, and
// the payload.
struct SegmentedSortOperands {
  DType key_type;
  bool descending;
  bool nearly_sorted;  // worth a look at what is in its place already; without heads and flags
  PayloadMode payload_mode;
  int payload_width = 0;  // bytes; 0 without payload
  Segments segments;
  bool whole_rows;  // without heads and flags
  const void* keys;
  const void* payload;  // null unless given
  void* sorted_keys;
  void* sorted_payload;

  explicit SegmentedSortOperands(const Call& call) {
    call.expect(call.operands.size() == 5, "expected 5 operands");
    const Array& keys_in = call.operands[0];
    const Array& heads = call.operands[1];
    const Array& flags = call.operands[2];
    const Array& count = call.operands[3];
    const Array& payload_in = call.operands[4];
    descending = call.attributes["descending"] != 0;
    nearly_sorted = call.attributes["nearly_sorted"] != 0;
    payload_mode = static_cast<PayloadMode>(call.attributes["payload"]);
    const Array& keys_out = call.results.at(0);

    key_type = keys_in.dtype;
    segments.length = Call::length(keys_out);
    segments.rows = Call::batch(keys_out, 1);
    call.expect(keys_in.size() == segments.total(), "keys: expected the shape of the result");
    keys = keys_in.data;
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
    if (Call::length(count) > 0) {
      segments.counts = call.index_vector(count, "count");
      segments.counts_stride = call.row_stride(count, 1, segments.rows, "count");
    }
    payload = nullptr;
    sorted_payload = nullptr;
    if (payload_mode != PayloadMode::kNone) {
      const Array& payload_out = call.results.at(1);
      payload_width = byte_width(payload_out.dtype);
      sorted_payload = payload_out.data;
      call.expect(payload_out.size() == segments.total(), "payload: expected the shape of the keys");
      if (payload_mode == PayloadMode::kGiven) {
        call.expect(payload_in.size() == segments.total(), "payload: expected the shape of the keys");
        payload = payload_in.data;
      }
    }
  }

  // How whole rows are sorted. kSegments: by the kernels for segments, which are as fast for many items with wide
  // payload or narrow keys, and fill their tiles with short rows. kRanks: by counting, for each item, what comes before
  // it. kFewItems: in small cells, merged by ranks. kOneCell: a row is a cell. kPairs, kLong: in large cells.
  enum class RowSort { kSegments, kRanks, kFewItems, kOneCell, kPairs, kLong };
  RowSort row_sort() const {
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

  // Scratch memory of the CUDA kernels: the other buffer of the merge rounds, and a descriptor a tile; or where the
  // runs are split at the start of each tile.
  struct Scratch {
    void* keys;
    void* payload;
    TileDescriptor* tiles;
    int* rounds;  // kCounters counters: the rounds, and the queued tiles of each; of whole rows a flag, and the phases'
    MergePlan* plans;
    int64_t* splits;  // kRuns a tile
    CellCut* cuts;    // of nearly sorted rows
    RunGroup* groups;
    GroupTile* group_tiles[kPhaseRounds];
  };
  static constexpr int64_t kCounters = 64;
  Scratch layout(Workspace& workspace) const {
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
  int64_t workspace_bytes() const {
    Workspace workspace;
    layout(workspace);
    return workspace.used();
  }
};

}  // namespace mgpu
