// A task counts a part of a row in its own bins, and the tasks of a row add up their counts.
#include <algorithm>
#include <atomic>
#include <vector>

#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "ops/count_bins/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

using cpu::kCountBinsPart;

// An item is the number of its bin; -1 stands for no bin.
template <typename Item>
struct NumberedBins {
  int64_t bins;
  int64_t operator()(Item number) const { return number >= 0 && number < bins ? static_cast<int64_t>(number) : -1; }
};

template <typename Order>
struct BinsBetweenEdges {
  using Word = typename Order::Word;
  Order order;
  std::vector<Word> ranks;  // Order::rank of each edge: words that compare as the keys do
  bool last_is_number;

  int64_t operator()(Word key) const {
    const Word rank = order.rank(order.encode(key));
    const auto bins = static_cast<int64_t>(ranks.size()) - 1;
    if (rank == ranks.back()) return last_is_number ? bins - 1 : -1;
    const int64_t bin = std::upper_bound(ranks.begin(), ranks.end(), rank) - ranks.begin() - 1;
    return bin < bins ? bin : -1;
  }
};

template <typename Item, typename BinsOf>
void run(const CountBinsOperands& operands, cpu::Executor& executor, BinsOf bins_of) {
  const int64_t bins = operands.bins;
  const int64_t part = std::max(kCountBinsPart, 4 * bins);
  const int64_t parts = std::max<int64_t>(1, ceil_div(operands.length, part));
  std::vector<std::atomic<int64_t>> sums(parts > 1 ? operands.rows * bins : 0);
  cpu::parallel_for(executor, operands.rows * parts, [&](int64_t task) {
    const int64_t row = task / parts, begin = (task - row * parts) * part;
    const auto bin_of = bins_of(row);
    std::vector<int64_t> own(bins);
    const Item* const items = static_cast<const Item*>(operands.x) + row * operands.x_stride;
    for (int64_t i = begin; i < std::min(operands.length, begin + part); ++i) {
      const int64_t bin = bin_of(items[i]);
      if (bin >= 0) ++own[bin];
    }
    for (int64_t bin = 0; bin < bins; ++bin) {
      if (parts == 1) {
        operands.counts.set(row * bins + bin, own[bin]);
      } else if (own[bin] > 0) {
        sums[row * bins + bin].fetch_add(own[bin], std::memory_order_relaxed);
      }
    }
  });
  for (size_t i = 0; i < sums.size(); ++i) operands.counts.set(i, sums[i].load(std::memory_order_relaxed));
}

}  // namespace

void cpu::count_bins(const Call& call, Executor& executor) {
  const CountBinsOperands operands(call);
  if (!operands.has_edges) {
    const auto numbered = [&](auto item) {
      using Item = decltype(item);
      run<Item>(operands, executor, [&](int64_t) { return NumberedBins<Item>{operands.bins}; });
    };
    return operands.item_type == DType::s64 ? numbered(int64_t{}) : numbered(int32_t{});
  }
  dispatch_order(call, operands.item_type, false, [&](auto order) {
    using Order = decltype(order);
    using Word = typename Order::Word;
    run<Word>(operands, executor, [&](int64_t row) {
      const Word* const edges = static_cast<const Word*>(operands.edges) + row * operands.edges_stride;
      BinsBetweenEdges<Order> bins{order, {}, !order.is_nan(edges[operands.edge_count - 1])};
      for (int64_t i = 0; i < operands.edge_count; ++i) bins.ranks.push_back(order.rank(order.encode(edges[i])));
      return bins;
    });
  });
}

}  // namespace mgpu
