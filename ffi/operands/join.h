// The call of join as its kernels see it: the same on both platforms.
#pragma once

#include "operands/sorted_pair.h"
#include "workspace.h"

namespace mgpu {

// A CUDA block's threads and the items that each walks over, by the keys' width in bytes: an odd number, so that lanes
// reading their items from shared memory meet different banks.
struct JoinTileShape {
  int threads;
  int items;
  constexpr int tile() const { return threads * items; }
};
constexpr JoinTileShape join_tile_shape(int key_width) { return {256, key_width == 8 ? 11 : 23}; }

// Where two tiles meet, in the merge in which B's items come before equal ones of A: the items of B before, and those
// of them with the key of A's next item.
struct JoinEdge {
  int64_t b;
  int64_t entering;
};

// A tile that makes more rows of the output than one block should write, dealt out in units.
struct JoinHeavyTile {
  int64_t first_unit;
  int64_t slot;  // of the first row
  int64_t rows;  // to be written
  int64_t tile;
};
constexpr int64_t kJoinUnit = 1 << 15;
constexpr int64_t kJoinHeavy = 1 << 16;  // rows from which a tile is heavy

// Operands: a [.., n_a], b [.., n_b], a_count [.., 1], b_count [.., 1]; counts may be absent (empty). Attributes:
// keep_a, keep_b: whether a row of A, of B, without a partner makes a row of its own. Results: a_indices [.., size],
// b_indices [.., size], count [..].
struct JoinOperands {
  DType key_type;
  SortedPair pair;
  bool keep_a;
  bool keep_b;
  int64_t size;
  IndexResult a_indices;
  IndexResult b_indices;
  IndexResult counts;

  explicit JoinOperands(const Call& call) {
    call.expect(call.operands.size() == 4 && call.results.size() >= 3, "expected 4 operands and 3 results");
    const auto& in = call.operands;
    const Array& a_out = call.results[0];
    const Array& b_out = call.results[1];
    const Array& count_out = call.results[2];
    const int64_t rows = Call::batch(a_out, 1);
    keep_a = call.attributes["keep_a"] != 0;
    keep_b = call.attributes["keep_b"] != 0;
    key_type = in[0].dtype;
    size = Call::length(a_out);
    pair = sorted_pair(call, in[0], in[1], in[2], in[3], rows);
    call.expect(b_out.size() == a_out.size() && count_out.size() == rows,
                "expected pairs of indices, and one count a row");
    a_indices = result(call, a_out);
    b_indices = result(call, b_out);
    counts = result(call, count_out);
  }

  // A count that its type cannot hold is told as the largest that it can.
  MGPU_HOST_DEVICE void set_count(int64_t row, int64_t count) const {
    constexpr int64_t kLargest = 2147483647;
    counts.set(row, counts.wide ? count : minimum(count, kLargest));
  }

  int64_t row_tiles() const {
    return maximum<int64_t>(1, ceil_div<int64_t>(pair.row_slots(), join_tile_shape(byte_width(key_type)).tile()));
  }
  int64_t tiles() const { return pair.rows * row_tiles(); }

  // Scratch memory of the CUDA kernels.
  struct Scratch {
    JoinEdge* edges;  // row_tiles() + 1 a row
    JoinHeavyTile* heavy;
    int64_t* paired;          // a row: rows of the output that come from A
    int64_t* alone;           // a row: items of B without a partner
    IndexResult alone_items;  // which they are, b.length a row
    uint64_t* zeroed;         // before every launch: all that follows
    uint64_t* heavy_state;    // 2^40 times the number of heavy tiles, plus that of their units
    uint64_t* row_words;      // of the look-backs
    uint64_t* alone_words;
    int64_t zeroed_words;
  };
  Scratch layout(Workspace& workspace) const {
    const int64_t words = tiles();
    Scratch scratch;
    scratch.edges = workspace.take<JoinEdge>(pair.rows * (row_tiles() + 1));
    scratch.heavy = workspace.take<JoinHeavyTile>(minimum(tiles(), pair.rows * (size / kJoinHeavy + 1)));
    scratch.paired = workspace.take<int64_t>(pair.rows);
    scratch.alone = workspace.take<int64_t>(pair.rows);
    const int64_t alone_bytes = keep_b ? pair.rows * pair.b.length * (b_indices.wide ? 8 : 4) : 0;
    scratch.alone_items = {workspace.take<char>(alone_bytes), b_indices.wide};
    scratch.zeroed_words = 2 + words + (keep_b ? words : 0);
    scratch.zeroed = workspace.take<uint64_t>(scratch.zeroed_words);
    scratch.heavy_state = scratch.zeroed + 1;
    scratch.row_words = scratch.zeroed + 2;
    scratch.alone_words = scratch.row_words + words;
    return scratch;
  }
  int64_t workspace_bytes() const {
    Workspace workspace;
    layout(workspace);
    return workspace.used();
  }

 private:
  static IndexResult result(const Call& call, const Array& array) {
    call.expect(array.dtype == DType::s32 || array.dtype == DType::s64, "expected results of int32 or int64");
    return {array.data, array.dtype == DType::s64};
  }
};

}  // namespace mgpu
