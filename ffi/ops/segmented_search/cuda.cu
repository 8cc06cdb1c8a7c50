#include "cuda/launch/launch.h"
#include "cuda/launch/shapes.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_search/kernels.cuh"
#include "ops/segmented_search/plan.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace segment_searching {

template <typename Order, typename Index>
void search_by_tree(const Call& call, const SegmentedSearchPlan& plan, Order order, cudaStream_t stream) {
  constexpr int kFanout = SearchTree::fanout(sizeof(typename Order::Word));
  const SegmentedSearchOperands& operands = plan.operands;
  Workspace workspace = workspace_of(call);
  const SearchTree tree = plan.layout(workspace);
  if (tree.levels > 0) {
    const int64_t nodes = operands.pair.b.length / kFanout + 2;
    const int64_t blocks = minimum(ceil_div<int64_t>(nodes, kMakeThreads), ceil_div(kMaxMakeBlocks, tree.rows));
    make_tree<<<static_cast<unsigned>(tree.rows * blocks), kMakeThreads, 0, stream>>>(operands, order, tree);
    check_launch(call);
  }
  // Each block copies the top of the tree, so there are about as many blocks
  // as the device holds at once, if needles suffice, and at least one per row.
  const auto kernel = search_tree<Order, Index>;
  const auto shared = static_cast<size_t>(tree.shared_bytes(sizeof(typename Order::Word)));
  allow_shared(call, kernel, shared);
  const int64_t needles = operands.pair.a.length, rows = operands.pair.rows;
  const int64_t max_parts = ceil_div<int64_t>(needles, kTreeThreads * kTreeItems);
  const int blocks = resident_blocks(call, kernel, kTreeThreads, shared, rows * max_parts);
  const int64_t wanted = ceil_div<int64_t>(blocks, rows);
  const int64_t part = ceil_div(max_parts, wanted) * kTreeThreads * kTreeItems;
  const int64_t parts = ceil_div(needles, part);
  kernel<<<static_cast<unsigned>(rows * parts), kTreeThreads, shared, stream>>>(operands, order, tree, parts, part);
  check_launch(call);
}

template <typename Order, typename Index>
void search_singly(const Call& call, const SegmentedSearchOperands& operands, Order order, cudaStream_t stream) {
  const int64_t lanes = ceil_div<int64_t>(operands.pair.a.length, kItems);
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(operands.pair.rows * lanes, kThreads));
  search_segments<Order, Index><<<blocks, kThreads, 0, stream>>>(operands, order, lanes);
  check_launch(call);
}

}  // namespace segment_searching

void list_segmented_search_shapes(const Call& call, KernelShapeList& list) {
  using namespace segment_searching;
  for_each_kind(call, "search tree", {0}, [&](auto order, auto, const std::string& name) {
    constexpr int kWidth = sizeof(typename decltype(order)::Word);
    KernelShapes shapes{name, {}};
    for (int64_t top_bytes : {SearchTree::kTopBytes, SearchTree::kSmallTopBytes}) {
      SearchTree tree;
      tree.top_keys = SearchTree::max_top_keys(kWidth, top_bytes);
      const int64_t bytes = tree.shared_bytes(kWidth);
      shapes.shapes.push_back({bytes, maximum(bytes, kMinSharedMemory)});
    }
    list.push_back(shapes);
  });
}

void segmented_search(const Call& call, cudaStream_t stream) {
  using namespace segment_searching;
  const SegmentedSearchOperands operands(call);
  const int64_t needles = operands.pair.a.length;
  const int64_t problems = operands.pair.rows;
  if (problems * needles == 0) return;
  const SegmentedSearchPlan plan(operands, device_traits(call));
  operands.dispatch_index([&](auto index) {
    using Index = decltype(index);
    if (operands.segments == 0) {  // all bits of -1 are set
      return check(call, cudaMemsetAsync(operands.positions.data, 0xff, problems * needles * sizeof(Index), stream));
    }
    dispatch_key_order(call, operands.key_type, false, [&](auto order) {
      using Order = decltype(order);
      plan.has_tree() ? search_by_tree<Order, Index>(call, plan, order, stream)
                      : search_singly<Order, Index>(call, operands, order, stream);
    });
  });
}

}  // namespace mgpu::cuda
