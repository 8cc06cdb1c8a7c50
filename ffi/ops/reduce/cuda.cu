#include "cuda/launch/overlapping.h"
#include "ops/common/dispatch_operator.h"
#include "ops/reduce/kernels.cuh"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu::cuda {

namespace {

int power_of_two(int64_t n, int limit) { return 1 << minimum(ceil_log2(n), ceil_log2(limit)); }

struct RowLanes {
  int lanes;
  bool many;  // whether a lane has many vectors
};

// Selects how many lanes share a row. If rows are too few
// to fill the device, more lanes share a row, with over two
// vectors each.
template <typename Operator>
RowLanes lanes_of_rows(const Segments& segments, const Operator& op) {
  constexpr int64_t kEnoughLanes = 1 << 16;
  constexpr int64_t kMinVectors = 4;
  constexpr int64_t kManyVectors = 16;
  constexpr int kStretchLanes = 4;
  const bool is_quick = !Operator::kGivesIndex || reducing::has_float_instructions(op);
  const int64_t vectors = ceil_div<int64_t>(segments.length, Vector<typename Operator::Element>::kItems);
  const auto lane_vectors = [&](int lanes) { return !is_quick ? 15 : lanes <= kStretchLanes ? 2 : 4; };
  int lanes = 1;
  while (lanes < kWarp && 2 * lanes * lane_vectors(2 * lanes) <= vectors) lanes *= 2;
  while (lanes < kWarp && segments.rows * lanes < kEnoughLanes && lanes * kMinVectors < vectors) lanes *= 2;
  return {lanes, vectors >= kManyVectors * lanes};
}

// Reduces rows in equal shares, by one block per row or by up to a
// warp. Returns false if no kernel has shares of the row's length.
template <typename Operator>
bool launch_equal_shares(const Call& call, const reducing::WholeRows<Operator>& rows, const Operator& op,
                         cudaStream_t stream) {
  using namespace reducing;
  using Element = typename Operator::Element;
  constexpr int kItems = Vector<Element>::kItems;
  const auto launch = [&]<int kVectorItems, int kVectors>(int lanes) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(rows.rows * lanes, kThreads));
    reduce_by_lanes<Operator, kVectorItems, kVectors><<<blocks, kThreads, 0, stream>>>(rows, lanes, op);
    check_launch(call);
    return true;
  };
  if constexpr (kItems >= 4) {  // rows shorter than a vector
    if (rows.length == kItems / 2) return launch.template operator()<kItems / 2, 1>(1);
    if (rows.length == kItems / 4) return launch.template operator()<kItems / 4, 1>(1);
  }
  if (rows.length % kItems != 0) return false;
  const int vectors = rows.length / kItems;
  if (vectors >= kMinBlockVectors) {
    constexpr int kVectors = sizeof(Element) < 4 ? 2 : 4;
    const int threads = vectors / kVectors;
    if (vectors % (kVectors * kWarp) != 0 || threads > kMaxShareThreads) return false;
    reduce_by_blocks<Operator, kItems, kVectors>
        <<<static_cast<unsigned>(rows.rows), static_cast<unsigned>(threads), 0, stream>>>(rows, op);
    check_launch(call);
    return true;
  }
  int lanes = minimum(kWarp, vectors & -vectors);
  if (lanes > 1 && lanes == vectors) lanes /= 2;  // two loads in flight
  switch (vectors / lanes) {
    case 1: return launch.template operator()<kItems, 1>(lanes);
    case 2: return launch.template operator()<kItems, 2>(lanes);
    case 3: return launch.template operator()<kItems, 3>(lanes);
    case 4: return launch.template operator()<kItems, 4>(lanes);
    case 6: return launch.template operator()<kItems, 6>(lanes);
    case 8: return launch.template operator()<kItems, 8>(lanes);
    default: return false;
  }
}

// Launches a kernel for WholeRows (kernels.cuh), if the rows are such and a
// kernel is faster for them than reduce_short_rows. Returns whether it did.
template <typename Operator>
bool launch_whole_rows(const Call& call, const ReduceOperands& operands, const reducing::Reduction<Operator>& reduction,
                       const Operator& op, cudaStream_t stream) {
  using namespace reducing;
  constexpr int kItems = Vector<typename Operator::Element>::kItems;
  const Segments& segments = operands.segments;
  if (!reduction.aligned || segments.counts.given() || segments.length == 0) return false;
  const WholeRows<Operator> rows{reduction.x, reduction.result, segments.rows, static_cast<int>(segments.length)};
  const auto blocks = [&](int64_t block_rows) {
    return static_cast<unsigned>(ceil_div<int64_t>(segments.rows, block_rows));
  };
  // Equal shares, and packs of rows of over 8 vectors, pay if states combine quickly.
  using State = typename Operator::State;
  constexpr bool kFoldsQuickly =
      !Operator::kGivesIndex && sizeof(State) <= maximum<size_t>(4, sizeof(typename Operator::Element));
  if constexpr (kFoldsQuickly) {
    if (launch_equal_shares(call, rows, op, stream)) return true;
  }
  if (segments.length % kItems != 0) return false;
  const PackedRows packed(segments.length, kItems);
  if (packed.rows > 0 && (kFoldsQuickly || segments.length <= 8 * kItems)) {
    reduce_packs<<<blocks(packed.rows * kPacks * (kThreads / kWarp)), kThreads, 0, stream>>>(rows, packed, op);
  } else if (!operands.has_short_rows()) {
    reduce_whole_rows<kThreads><<<blocks(1), kThreads, 0, stream>>>(rows, op);
  } else if (lanes_of_rows(segments, op).lanes == kWarp) {
    reduce_whole_rows<kWarp><<<blocks(kThreads / kWarp), kThreads, 0, stream>>>(rows, op);
  } else {
    return false;
  }
  check_launch(call);
  return true;
}

}  // namespace

void reduce(const Call& call, cudaStream_t stream) {
  using namespace reducing;
  const ReduceOperands operands(call);
  const Segments& segments = operands.segments;
  if (segments.rows == 0) return;
  operands.dispatch_reduction<true>(call, [&](auto op) {
    using Operator = decltype(op);
    using State = typename Operator::State;
    Workspace workspace = workspace_of(call);
    auto* states = reinterpret_cast<State*>(operands.layout(workspace, sizeof(State)));
    const Reduction<Operator> reduction{static_cast<const typename Operator::Element*>(operands.x),
                                        is_aligned(operands.x),
                                        segments,
                                        operands.chunk_items(),
                                        operands.chunks(),
                                        states,
                                        results_of<Operator>(operands)};
    if (reduction.chunks == 1 && launch_whole_rows(call, operands, reduction, op, stream)) return;
    if (operands.has_short_rows()) {
      const auto [lanes, many] = lanes_of_rows(segments, op);
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(segments.rows * lanes, kThreads));
      const auto kernel = many ? reduce_short_rows<Operator, kManyLoads<Operator> != kLoads<Operator>>
                               : reduce_short_rows<Operator, false>;
      kernel<<<blocks, kThreads, 0, stream>>>(reduction, lanes, op);
      return check_launch(call);
    }
    reduce_chunks<<<static_cast<unsigned>(segments.rows * reduction.chunks), kThreads, 0, stream>>>(reduction, op);
    check_launch(call);
    if (reduction.chunks == 1) return;
    const int threads = maximum(kWarp, power_of_two(reduction.chunks, 1024));
    launch_overlapping(call, stream, reduce_states<Operator>, segments.rows, threads, 0, reduction, op);
  });
}

}  // namespace mgpu::cuda
