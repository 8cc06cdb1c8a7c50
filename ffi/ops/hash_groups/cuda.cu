#include "cuda/launch/overlapping.h"
#include "cuda/launch/shapes.h"
#include "ops/hash_groups/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace hash_grouping {

template <typename Word>
GroupTask<Word> task_of(const HashGroupsOperands& operands, const HashGroupsOperands::Scratch& scratch, int64_t row) {
  GroupTask<Word> task{.length = operands.length,
                       .row = row,
                       .counts = operands.counts,
                       .flip_of_pairs = static_cast<Word>(operands.flip_of_pairs),
                       .empty = static_cast<Word>(~Word{0} >> operands.has_signed_keys()),
                       .entries = operands.entries,
                       .columns = operands.columns,
                       .table_keys = static_cast<Word*>(operands.groups) + row * (operands.entries + 1),
                       .counters = operands.counters + row * kGroupCounters,
                       .scratch = scratch};
  if (operands.lower) {
    task.upper = static_cast<const uint32_t*>(operands.keys) + row * operands.keys_stride;
    task.lower = operands.lower + row * operands.lower_stride;
  } else {
    task.keys = static_cast<const Word*>(operands.keys) + row * operands.keys_stride;
  }
  for (int c = 0; c < operands.columns; ++c) {
    task.values[c] = operands.has_values[c] ? operands.values[c] + row * operands.values_stride[c] : nullptr;
    task.flips[c] = operands.flip(c);
    task.is_maximum[c] = operands.kinds[c] != GroupState::kAdd;
    task.states[c] = operands.states[c] + row * (operands.entries + 1);
  }
  return task;
}

template <typename Word, int kColumns, int kEntries>
void launch_combination(const Call& call, const GroupTask<Word>& task, cudaStream_t stream) {
  constexpr int64_t kBytes = sizeof(BlockTable<Word, kColumns, kEntries>);
  const auto kernel = combine_groups<Word, kColumns, kEntries>;
  allow_shared(call, kernel, kBytes);
  const int blocks =
      resident_blocks(call, kernel, kCombineThreads, kBytes, ceil_div<int64_t>(task.length, 2 * kGroupEntries));
  launch_overlapping(call, stream, kernel, blocks, kCombineThreads, kBytes, task);
}

// Takes the largest table that fits shared memory.
template <typename Word, int kColumns>
void launch_fitting_combination(const Call& call, const GroupTask<Word>& task, cudaStream_t stream) {
  const auto limit = static_cast<uint64_t>(shared_memory_limit(call));
  if (sizeof(BlockTable<Word, kColumns, kGroupEntries>) <= limit) {
    launch_combination<Word, kColumns, kGroupEntries>(call, task, stream);
  } else if (sizeof(BlockTable<Word, kColumns, kGroupEntries / 2>) <= limit) {
    launch_combination<Word, kColumns, kGroupEntries / 2>(call, task, stream);
  } else {
    launch_combination<Word, kColumns, kGroupEntries / 4>(call, task, stream);
  }
}

// Groups the rows, one problem after the other.
template <typename Word, int kColumns>
void run(const Call& call, const HashGroupsOperands& operands, cudaStream_t stream) {
  Workspace workspace = workspace_of(call);
  const HashGroupsOperands::Scratch scratch = operands.layout(workspace);
  const int64_t filled = maximum<int64_t>(operands.entries + 1, int64_t{kGroupBuckets} * scratch.units);
  for (int64_t row = 0; row < operands.rows; ++row) {
    const GroupTask<Word> task = task_of<Word>(operands, scratch, row);
    fill_groups<Word>
        <<<static_cast<unsigned>(ceil_div<int64_t>(filled, kFillThreads)), kFillThreads, 0, stream>>>(task);
    check_launch(call);
    if (operands.length == 0) continue;
    if (operands.bucketed) {
      launch_overlapping(call, stream, partition_rows<Word>, scratch.tiles, kPartitionThreads, 0, task);
      launch_overlapping(call, stream, start_units<Word>, 1, kStartThreads, 0, task);
    }
    launch_fitting_combination<Word, kColumns>(call, task, stream);
  }
}

template <typename Word>
void list_shapes(const std::string& keys, KernelShapeList& list) {
  KernelShapes shapes{"tables of groups, keys of " + keys, {}};
  for (const int64_t bytes :
       {sizeof(BlockTable<Word, 2, kGroupEntries>), sizeof(BlockTable<Word, 2, kGroupEntries / 2>),
        sizeof(BlockTable<Word, 2, kGroupEntries / 4>)}) {
    shapes.shapes.push_back({bytes, bytes});
  }
  list.push_back(shapes);
}

}  // namespace hash_grouping

void list_hash_groups_shapes(const Call&, KernelShapeList& list) {
  hash_grouping::list_shapes<uint32_t>("4 bytes", list);
  hash_grouping::list_shapes<uint64_t>("8 bytes", list);
}

void hash_groups(const Call& call, cudaStream_t stream) {
  using namespace hash_grouping;
  const HashGroupsOperands operands(call);
  if (operands.rows == 0) return;
  const auto with_columns = [&](auto word) {
    using Word = decltype(word);
    operands.columns == 2 ? run<Word, 2>(call, operands, stream) : run<Word, 1>(call, operands, stream);
  };
  byte_width(operands.key_type) == 8 ? with_columns(uint64_t{}) : with_columns(uint32_t{});
}

}  // namespace mgpu::cuda
