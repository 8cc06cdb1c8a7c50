// The call of join as its kernels see it: the same on both platforms.
#pragma once

#include "ops/sorted_pair/operands.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;

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

  explicit JoinOperands(const Call& call);

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
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
