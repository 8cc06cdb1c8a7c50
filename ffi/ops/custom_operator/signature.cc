#include <algorithm>

#include "jit/function_data.h"
#include "ops/custom_operator/operands.h"
#include "runtime/call.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

// The most bytes of an item or a state that are accepted.
constexpr int64_t kMaxItemBytes = 1 << 12;

FunctionOperands::FunctionOperands(const Call& call, int outputs, int64_t width) : width(width) {
  const Attributes& attributes = call.attributes;
  call.expect(width >= 0, "width: expected 0 or the number of columns");
  const int64_t columns = maximum<int64_t>(width, 1);
  for (const char* name : {"item_bytes", "widest", "packed", "state_bytes"}) {
    call.expect(attributes[name] > 0 && attributes[name] <= kMaxItemBytes, "expected the sizes of an item");
  }
  shape = {static_cast<int>(attributes["item_bytes"]), static_cast<int>(attributes["widest"]),
           static_cast<int>(attributes["packed"])};
  state_bytes = attributes["state_bytes"];
  const auto count = static_cast<size_t>(attributes["leaves"]);
  const auto captured = static_cast<size_t>(attributes["captures"]);
  call.expect(count >= 1 && count <= kMaxLeaves && captured <= kMaxCaptures, "expected 1 to 16 leaves and captures");
  call.expect(shape.packed >= shape.widest, "expected the sizes of an item");
  result_leaves = attributes["results"];
  call.expect(result_leaves >= 1 && result_leaves <= kMaxLeaves, "expected results of 1 to 16 leaves");
  call.expect(call.results.size() == static_cast<size_t>(outputs * result_leaves),
              "expected the leaves of the results");
  call.expect(call.operands.size() == count + captured + 2, "expected leaves, captures, heads and count");
  const int batch_rank = static_cast<int>(attributes["batch_rank"]);
  const Array& first = call.operands[0];
  call.expect(batch_rank >= 0 && first.rank() > batch_rank, "expected leaves with the batch axes and one more");
  segments.rows = first.extent(0, batch_rank);
  segments.length = first.dimensions[batch_rank];
  int64_t widest = 0, packed = 0;
  for (size_t i = 0; i < count; ++i) {
    const Array& leaf = call.operands[i];
    call.expect(leaf.rank() > batch_rank && leaf.extent(0, batch_rank + 1) == segments.total(),
                "expected leaves of one length");
    const int64_t elements = leaf.extent(batch_rank + 1, leaf.rank());
    call.expect(width == 0 || elements == width, "expected leaves with a number in each column");
    const int64_t bytes = elements / columns * byte_width(leaf.dtype);
    leaves.push_back(leaf.data);
    widest = maximum(widest, bytes);
    packed += bytes;
    aligned = aligned && reinterpret_cast<uintptr_t>(leaf.data) % 16 == 0;
  }
  call.expect(widest == shape.widest && packed == shape.packed, "expected leaves of the sizes that are attributes");
  for (size_t i = 0; i < captured; ++i) captures.arrays[i] = call.operands[count + i].data;
  if (const FunctionData* const function = call.function) {
    const ItemShape own = function->shape();
    call.expect(!function->is_order && shape.size == own.size && shape.widest == own.widest &&
                    shape.packed == own.packed && state_bytes == function->state_bytes() &&
                    count == function->element.size() && result_leaves == static_cast<int64_t>(function->result.size()),
                "expected the sizes of the function");
    function->expect_leaves(call, batch_rank, segments.total(), columns);
    function->expect_captures(call, count, captured);
  }
  const Array& heads = call.operands[count + captured];
  if (heads.size() > 0) {
    segments.heads_count = Call::length(heads);
    segments.heads = call.index_vector(heads, "heads");
    segments.heads_stride = call.row_stride(heads, segments.heads_count, segments.rows, "heads");
  }
  segments.counts = call.live_counts(call.operands.back(), segments.rows);
}

std::vector<void*> FunctionOperands::results(const Call& call, size_t first, int64_t items) const {
  if (call.function) call.function->expect_results(call, first, items);
  std::vector<void*> pointers;
  int64_t bytes = 0;
  for (int64_t i = 0; i < result_leaves; ++i) {
    const Array& result = call.results[first + i];
    call.expect(items == 0 || result.bytes() % items == 0, "expected as many results as items");
    bytes += result.bytes();
    pointers.push_back(result.data);
  }
  const int64_t own_bytes = call.attributes["result_bytes"];
  call.expect(items == 0 ? bytes == 0 : bytes % items == 0 && bytes / items == own_bytes,
              "expected results of the size that is an attribute");
  return pointers;
}

ItemArrays<AnyItem> FunctionOperands::sources() const {
  ItemArrays<AnyItem> arrays{};
  std::copy(leaves.begin(), leaves.end(), arrays.leaves);
  return arrays;
}
ResultVector<AnyOperator> FunctionOperands::targets(const std::vector<void*>& leaves) {
  ResultVector<AnyOperator> arrays{};
  std::copy(leaves.begin(), leaves.end(), arrays.leaves);
  return arrays;
}

ScanFunctionOperands::ScanFunctionOperands(const Call& call)
    : FunctionOperands(call, call.attributes["total"] != 0 ? 2 : 1, call.attributes["width"]),
      exclusive(call.attributes["exclusive"] != 0),
      reverse(call.attributes["reverse"] != 0),
      segmented(call.attributes["segmented"] != 0),
      result(results(call, 0, segments.total() * maximum<int64_t>(width, 1))) {
  if (call.attributes["total"] != 0) totals = results(call, result_leaves, segments.rows);
  if (of_rows()) {
    call.expect(totals.empty() && static_cast<int64_t>(leaves.size()) * shape.widest == shape.packed &&
                    shape.widest <= 8 && shape.packed <= kMaxRowItemBytes,
                "expected few leaves of one width, and no totals");
  }
  call.expect(segmented || segments.heads_count == 0, "heads: expected none");
  if (call.function) {
    call.expect(exclusive == call.function->exclusive && reverse == call.function->reverse,
                "exclusive and reverse: expected those of the function");
    takes_next = call.function->takes_next;
    call.expect(!takes_next || (of_rows() && !segmented), "next: expected a scan of rows without heads");
  }
  for (const void* data : result) aligned = aligned && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

ScanFunctionOperands::Scratch ScanFunctionOperands::layout(Workspace& workspace) const {
  const int64_t words = maximum(look_back_words(true), segmented ? 0 : look_back_words(false));
  return {workspace.take<uint64_t>(words), workspace.take<int64_t>(tiles(true) + 1)};
}

RowScanScratch ScanFunctionOperands::row_layout(Workspace& workspace) const {
  return {workspace, segments, tiling(), state_bytes};
}

int64_t workspace::scan_by_function(const Call& call) {
  const ScanFunctionOperands operands(call);
  if (!operands.of_rows()) return layout_bytes(operands);
  Workspace workspace;
  operands.row_layout(workspace);
  return workspace.used();
}

ReduceFunctionOperands::ReduceFunctionOperands(const Call& call)
    : FunctionOperands(call), result(results(call, 0, segments.rows)) {}

char* ReduceFunctionOperands::layout(Workspace& workspace) const {
  return workspace.take<char>(has_short_rows() ? 0 : segments.rows * chunks() * state_bytes);
}

int64_t workspace::reduce_by_function(const Call& call) { return layout_bytes(ReduceFunctionOperands(call)); }

SegmentedReduceFunctionOperands::SegmentedReduceFunctionOperands(const Call& call)
    : FunctionOperands(call), result(results(call, 0, segments.rows * segments.heads_count)) {}

int64_t workspace::segmented_reduce_by_function(const Call& call) {
  return layout_bytes(SegmentedReduceFunctionOperands(call));
}

}  // namespace mgpu
