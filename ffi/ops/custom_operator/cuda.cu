// Reductions and scans by callers' functions run the kernels of ops/reduce, ops/scan and ops/scan_rows, which are
// compiled at run time for each function.
#include "cuda/launch/launch.h"
#include "jit/compiler.h"
#include "jit/function_data.h"
#include "ops/custom_operator/operands.h"
#include "ops/reduce/kernels.cuh"
#include "ops/reduce/segmented_reduce.cuh"
#include "ops/scan/scan_tiles.cuh"
#include "ops/scan_rows/task.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace {

template <typename... Parameters>
void launch(Kernel kernel, int64_t blocks, int threads, int64_t shared, CUstream_st* stream,
            const Parameters&... parameters) {
  launch_kernel(kernel, blocks, threads, shared, stream, {const_cast<Parameters*>(&parameters)...});
}

std::string of_function(const char* kernel) {
  return std::string("mgpu::cuda::") + kernel + "<mgpu::FunctionOperator<mgpu::function::Function>>";
}

// ---- Reductions

enum { kReduceChunks, kReduceStates, kReduceShortRows };

const std::vector<Kernel>& reduce_kernels(std::string_view source, int device) {
  static const std::vector<std::string> names = {of_function("reducing::reduce_chunks"),
                                                 of_function("reducing::reduce_states"),
                                                 of_function("reducing::reduce_short_rows")};
  return kernels_of(source, "ops/reduce/kernels.cuh", names, device);
}

enum { kSegmentTiles, kSegmentJoins, kSegmentPartition };

const std::vector<Kernel>& segmented_reduce_kernels(std::string_view source, int device) {
  static const std::vector<std::string> names = {of_function("segment_reducing::reduce_tiles"),
                                                 of_function("segment_reducing::join_tiles"),
                                                 "mgpu::cuda::partition_units"};
  return kernels_of(source, "ops/reduce/segmented_reduce.cuh", names, device);
}

// ---- Scans

int64_t staged_bytes(ItemShape shape) {
  return int64_t{scanning::TileShape::kStages} * kScanThreads * shape.rows() * shape.vector() * shape.packed;
}

// Whether a block's shared memory has room for the stages (buffers of loads in flight) and for the states of tiles.
bool has_stages(ItemShape shape, int64_t state_bytes, int device) {
  using scanning::TileShape;
  const int64_t static_bytes = 1024 + (TileShape::kStages + 1) * TileShape::kWarps * state_bytes;
  return staged_bytes(shape) + static_bytes <= shared_limit(device);
}

enum { kScanTiles };
enum { kScanSegments, kListHeads };

const std::vector<Kernel>& scan_kernels(std::string_view source, bool in_tiles, int device) {
  static const std::vector<std::string> tiles = {of_function("scanning::scan_tiles")};
  static const std::vector<std::string> segments = {of_function("scanning::scan_segments"),
                                                    "mgpu::cuda::scanning::list_heads<>"};
  return in_tiles ? kernels_of(source, "ops/scan/scan_tiles.cuh", tiles, device)
                  : kernels_of(source, "ops/scan/scan_segments.cuh", segments, device);
}

enum { kScanRows, kMarkHeads };

const std::vector<Kernel>& row_kernels(std::string_view source, bool segmented, bool wide, int device) {
  static const auto names = [](bool segmented, bool wide) -> std::vector<std::string> {
    const auto flag = [](bool on) { return on ? ", true" : ", false"; };
    return {std::string("mgpu::cuda::row_scanning::scan_tiles<mgpu::FunctionOperator<mgpu::function::Function>") +
                flag(segmented) + flag(wide) + ">",
            "mgpu::cuda::row_scanning::mark_heads<>"};
  };
  static const std::vector<std::string> lists[2][2] = {{names(false, false), names(false, true)},
                                                       {names(true, false), names(true, true)}};
  return kernels_of(source, "ops/scan_rows/kernels.cuh", lists[segmented][wide], device);
}

void scan_rows_by_function(const Call& call, const ScanFunctionOperands& operands, CUstream_st* stream) {
  using namespace row_scanning;
  const Segments& segments = operands.segments;
  const RowScanTiling tiling = operands.tiling();
  const auto& kernels = row_kernels(call.function->source, operands.segmented, tiling.wide(), current_device());
  if (segments.total() == 0) return;
  Workspace workspace = workspace_of(call);
  const RowScanScratch scratch = operands.row_layout(workspace);
  auto task = make_task<AnyOperator>(tiling, segments, operands.state_bytes, scratch);
  // A row and the next one are copied by the same vectors only if rows are whole vectors.
  const bool aligned = operands.aligned && (!operands.takes_next || tiling.width % tiling.vector() == 0);
  set_copies(task, tiling, aligned, aligned);
  task.x = operands.sources();
  task.exclusive = operands.exclusive;
  task.reverse = operands.reverse;
  task.result = FunctionOperands::targets(operands.result);
  const AnyOperator op = operands.op();
  check(call, cudaMemsetAsync(scratch.look_back, 0, scratch.words * sizeof(uint64_t), stream));
  if (operands.segmented) {
    const int64_t problems = segments.heads_stride == 0 ? 1 : segments.rows;
    launch(kernels[kMarkHeads], mark_blocks(segments), row_scanning::kThreads, 0, stream, segments, problems,
           tiling.mark_words(), scratch.marks);
  }
  const int64_t blocks = segments.rows * tiling.tiles() * tiling.slices();
  call.expect(blocks <= INT32_MAX, "expected fewer problems, or larger ones");
  launch(kernels[kScanRows], blocks, row_scanning::kThreads, tiling.shared_bytes(), stream, task, op);
}

}  // namespace

void prepare_reduce_by_function(const Attributes&, const FunctionData& function) {
  for (const int device : distinct_devices()) reduce_kernels(function.source, device);
}

void reduce_by_function(const Call& call, CUstream_st* stream) {
  using namespace reducing;
  const ReduceFunctionOperands operands(call);
  const Segments& segments = operands.segments;
  if (segments.rows == 0) return;
  const auto& kernels = reduce_kernels(call.function->source, current_device());
  Workspace workspace = workspace_of(call);
  const Reduction<AnyOperator> reduction{operands.sources(),
                                         operands.rows_aligned(),
                                         segments,
                                         operands.chunk_items(),
                                         operands.chunks(),
                                         operands.layout(workspace),
                                         FunctionOperands::targets(operands.result)};
  const AnyOperator op = operands.op();
  if (operands.has_short_rows()) {
    int lanes = 1;
    while (lanes < kWarp && lanes * operands.shape.vector() * 4 < segments.length) lanes *= 2;
    return launch(kernels[kReduceShortRows], ceil_div<int64_t>(segments.rows * lanes, kThreads), kThreads, 0, stream,
                  reduction, lanes, op);
  }
  if (segments.length == 0) {
    return launch(kernels[kReduceStates], segments.rows, kWarp, 0, stream, reduction, op);
  }
  launch(kernels[kReduceChunks], segments.rows * reduction.chunks, kThreads, 0, stream, reduction, op);
  if (reduction.chunks > 1) {
    launch(kernels[kReduceStates], segments.rows, kThreads, 0, stream, reduction, op);
  }
}

void prepare_segmented_reduce_by_function(const Attributes&, const FunctionData& function) {
  for (const int device : distinct_devices()) segmented_reduce_kernels(function.source, device);
}

void segmented_reduce_by_function(const Call& call, CUstream_st* stream) {
  using namespace segment_reducing;
  const SegmentedReduceFunctionOperands operands(call);
  const Segments& segments = operands.segments;
  if (segments.rows * segments.heads_count == 0) return;
  const auto& kernels = segmented_reduce_kernels(call.function->source, current_device());
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace);
  const UnitTiles tiles = unit_tiles(operands.tiling(), scratch.items_before);
  const SegmentedReduction<AnyOperator> reduction{operands.sources(),
                                                  operands.aligned,
                                                  tiles,
                                                  scratch.opening,
                                                  reinterpret_cast<SinceRestart<char>*>(scratch.open),
                                                  FunctionOperands::targets(operands.result)};
  const AnyOperator op = operands.op();
  launch(kernels[kSegmentPartition], tiles.partition_blocks(), kPartitionThreads, 0, stream, tiles);
  launch(kernels[kSegmentTiles], tiles.tiles, segment_reducing::kThreads, 0, stream, reduction, op);
  if (tiles.tiles > 1) launch(kernels[kSegmentJoins], join_blocks(tiles.tiles), kJoinThreads, 0, stream, reduction, op);
}

void prepare_scan_by_function(const Attributes& attributes, const FunctionData& function) {
  for (const int device : distinct_devices()) {
    if (attributes["width"] > 0) {
      const RowScanTiling tiling{0, attributes["width"], attributes["widest"]};
      row_kernels(function.source, attributes["segmented"] != 0, tiling.wide(), device);
      continue;
    }
    const bool in_tiles = attributes["segmented"] == 0 && has_stages(function.shape(), function.state_bytes(), device);
    scan_kernels(function.source, in_tiles, device);
  }
}

void scan_by_function(const Call& call, CUstream_st* stream) {
  using namespace scanning;
  const ScanFunctionOperands operands(call);
  if (operands.of_rows()) return scan_rows_by_function(call, operands, stream);
  const Segments& segments = operands.segments;
  const int device = current_device();
  const bool in_tiles = !operands.segmented && has_stages(operands.shape, operands.state_bytes, device);
  const auto& kernels = scan_kernels(call.function->source, in_tiles, device);
  if (segments.total() == 0) return;  // the caller computes a total over no items
  Workspace workspace = workspace_of(call);
  const auto scratch = operands.layout(workspace);
  Segments restarts = segments;
  restarts.counts = {};
  const int64_t tiles = operands.tiles(!in_tiles);
  const ScanTask<AnyOperator> task{operands.sources(),
                                   operands.rows_aligned(),
                                   operands.exclusive,
                                   operands.reverse,
                                   segments,
                                   restarts,
                                   tiles,
                                   scratch.look_back,
                                   scratch.listed,
                                   FunctionOperands::targets(operands.result),
                                   FunctionOperands::targets(operands.totals)};
  const AnyOperator op = operands.op();
  check(call, cudaMemsetAsync(scratch.look_back, 0, operands.look_back_words(!in_tiles) * sizeof(uint64_t), stream));
  if (in_tiles) {
    const int64_t bytes = staged_bytes(operands.shape);
    const int blocks =
        resident_kernel_blocks(kernels[kScanTiles], scanning::TileShape::kThreads, bytes, tiles * segments.rows);
    return launch(kernels[kScanTiles], blocks, scanning::TileShape::kThreads, bytes, stream, task, op);
  }
  launch(kernels[kListHeads], ceil_div<int64_t>((tiles + 1) * kWarp, scanning::kThreads), scanning::kThreads, 0, stream,
         segments, tiles, static_cast<int>(operands.tile_items(true)), operands.reverse, scratch.listed);
  launch(kernels[kScanSegments], tiles, scanning::kThreads, 0, stream, task, op);
}

}  // namespace mgpu::cuda
