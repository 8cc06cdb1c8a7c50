#pragma once

#include <string_view>
#include <vector>

#include "algorithm/look_back.h"
#include "algorithm/segments.h"
#include "function/item.h"
#include "function/operator.h"
#include "ops/reduce/plan.h"
#include "ops/scan/plan.h"
#include "ops/scan_rows/plan.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: the leaves of the items, each [.., n, *]; the arrays that the function captured; heads [.., m] or absent;
// count [.., 1], the number of live items, or absent. A leaf is one array of a caller's pytree.
// Results: the leaves of the operation's results. Attributes:
//   leaves, captures            the numbers of the leaves and of the captured arrays among the operands
//   results                     the number of leaves of each result
//   result_bytes                the bytes of one item of a result, in all leaves
//   batch_rank                  the number of batch axes
//   item_bytes, widest, packed  the sizes of an item (ItemShape)
//   state_bytes                 the bytes of a state
// In a scan of rows, the leaves are [.., n, width], and an item is one number of each leaf.
struct FunctionOperands {
  ItemShape shape;
  int64_t state_bytes;
  int64_t width;  // the columns of a scan of rows; 0 for other operations
  Segments segments;
  std::vector<const void*> leaves;
  int64_t result_leaves;
  Captures captures{};
  bool aligned = true;  // whether the leaves are aligned to 16 bytes; in a scan, those of the result too

  // `outputs` is the number of results, each of result_leaves leaves: 2 for a scan with a total.
  explicit FunctionOperands(const Call& call, int outputs = 1, int64_t width = 0);

  bool rows_aligned() const { return aligned && (segments.rows == 1 || segments.length % shape.vector() == 0); }

  // The arrays of one result's leaves, of `items` items each, which begin at array `first` of the call's results.
  std::vector<void*> results(const Call& call, size_t first, int64_t items) const;

  // The operands in the form that kernels take.
  ItemArrays<AnyItem> sources() const;
  static ResultVector<AnyOperator> targets(const std::vector<void*>& leaves);
  AnyOperator op() const { return {captures, segments.length}; }
};

// A scan has more attributes: exclusive; reverse; total; segmented, which must be set
// if there are heads; and width, the number of columns of a scan of rows, otherwise 0.
struct ScanFunctionOperands : FunctionOperands {
  bool exclusive;
  bool reverse;
  bool segmented;
  bool takes_next = false;  // whether `finish` gets the last leaf of the scan's next row
  std::vector<void*> result;
  std::vector<void*> totals;  // empty if not asked for

  explicit ScanFunctionOperands(const Call& call);

  int64_t tile_items(bool restarts) const {
    const int rows = restarts ? shape.segment_rows(state_bytes) : shape.rows();
    return int64_t{kScanThreads} * rows * shape.vector();
  }
  // The number of tiles of a look-back, and the number of words of all look-backs.
  int64_t tiles(bool restarts) const {
    return ceil_div(restarts ? segments.total() : segments.length, tile_items(restarts));
  }
  int64_t look_back_words(bool restarts) const {
    return 1 + (restarts ? LookBackLayout{tiles(true)}.words(state_bytes)
                         : segments.rows * LookBackLayout{tiles(false)}.words(state_bytes));
  }

  static constexpr int kMaxRowItemBytes = 32;
  bool of_rows() const { return width > 0; }
  RowScanTiling tiling() const { return {segments.length, width, shape.widest, static_cast<int>(leaves.size())}; }

  struct Scratch {
    uint64_t* look_back;
    int64_t* listed;
  };
  Scratch layout(Workspace& workspace) const;
  RowScanScratch row_layout(Workspace& workspace) const;
};

struct ReduceFunctionOperands : FunctionOperands {
  std::vector<void*> result;

  explicit ReduceFunctionOperands(const Call& call);

  // A multiple of 256 vectors of items.
  int64_t chunk_items() const {
    const int64_t step = int64_t{256} * shape.vector();
    int64_t items = maximum<int64_t>(kReduceChunkBytes / shape.packed / step, 1) * step;
    while (segments.total() > items * 2 * kReduceMaxChunks) items *= 2;
    return items;
  }
  int64_t chunks() const { return ceil_div(segments.length, chunk_items()); }
  bool has_short_rows() const { return segments.rows > 1 && segments.length * shape.packed <= 4 * kReduceShortRow; }

  char* layout(Workspace& workspace) const;
};

struct SegmentedReduceFunctionOperands : FunctionOperands {
  std::vector<void*> result;

  explicit SegmentedReduceFunctionOperands(const Call& call);

  SegmentTiling tiling() const { return {{segments}, state_bytes, maximum<int64_t>(state_bytes, shape.size)}; }
  SegmentTiling::Scratch layout(Workspace& workspace) const { return tiling().layout(workspace); }
};

}  // namespace mgpu
