// The kernel of count_bins: a block counts a part of a row in shared memory, and adds it to the row's counts.
#pragma once

#include "algorithm/key_order.h"
#include "algorithm/partition_point.h"
#include "cuda/cta/partition.cuh"
#include "operands/count_bins.h"

namespace mgpu::cuda::counting {

constexpr int kThreads = kCountBinsThreads;
constexpr int kNoBin = -1;

struct CountTask {
  CountBinsOperands operands;
  int64_t parts;  // of a row
  int64_t part;   // items
  int copies;     // of each counter, a power of two
};

// Items are the numbers of their bins.
template <typename Item_>
struct NumberedBins {
  using Item = Item_;
  static constexpr int kSharedBytes = 0;
  int64_t bins;

  __device__ void prepare(const CountTask& /*task*/, int64_t /*row*/, void* /*shared*/) {}
  __device__ __forceinline__ int operator()(Item number) const {
    return static_cast<uint64_t>(static_cast<int64_t>(number)) < static_cast<uint64_t>(bins) ? static_cast<int>(number)
                                                                                             : kNoBin;
  }
};

// The ranks from the lowest edge to the highest are cut into slots of one width, a power of two. A table has the edges
// in each slot: few, or none, are left to search.
template <typename Order>
struct BinsBetweenEdges {
  using Item = typename Order::Word;
  using Word = Item;
  static constexpr int kSlots = 1 << kEdgeSlotsLog;
  struct Slot {
    uint16_t begin, end;
  };
  struct Shared {
    Word ranks[kMostCountedEdges];
    Slot slots[kSlots];
  };
  static constexpr int kSharedBytes = sizeof(Shared);

  Order order;
  const Shared* shared = nullptr;
  int edges = 0;
  Word lowest = 0, highest = 0;
  int shift = 0;  // from a distance to a slot
  int last_bin = kNoBin;

  // The first edge above a rank, among those from `begin` to `end`.
  __device__ __forceinline__ int first_above(Word rank, int begin, int end) const {
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (rank < shared->ranks[middle]) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  }

  // By all threads of the block.
  __device__ void prepare(const CountTask& task, int64_t row, void* memory) {
    Shared& table = *static_cast<Shared*>(memory);
    shared = &table;
    edges = static_cast<int>(task.operands.edge_count);
    const Word* const keys = static_cast<const Word*>(task.operands.edges) + row * task.operands.edges_stride;
    for (int i = threadIdx.x; i < edges; i += kThreads) table.ranks[i] = order.rank(order.encode(keys[i]));
    __syncthreads();
    lowest = table.ranks[0];
    highest = table.ranks[edges - 1];
    last_bin = order.is_nan(keys[edges - 1]) ? kNoBin : edges - 2;
    const Word span = static_cast<Word>(highest - lowest);
    while (static_cast<Word>(span >> shift) >= kSlots) ++shift;
    const int slots = highest < lowest ? 0 : static_cast<int>(span >> shift) + 1;
    for (int slot = threadIdx.x; slot < slots; slot += kThreads) {
      const Word first = static_cast<Word>(lowest + (static_cast<Word>(slot) << shift));
      const Word last = static_cast<Word>(first + static_cast<Word>((Word{1} << shift) - 1));
      table.slots[slot] = {static_cast<uint16_t>(first_above(first, 0, edges)),
                           static_cast<uint16_t>(last < first ? edges : first_above(last, 0, edges))};
    }
    __syncthreads();
  }

  __device__ __forceinline__ int operator()(Word key) const {
    const Word rank = order.rank(order.encode(key));
    if (rank < lowest || rank > highest) return kNoBin;
    if (rank == highest) return last_bin;
    const Slot slot = shared->slots[static_cast<Word>(rank - lowest) >> shift];
    return clamp(first_above(rank, slot.begin, slot.end) - 1, 0, edges - 2);
  }
};

__device__ inline void add_to(const IndexResult& counts, int64_t i, unsigned count) {
  if (counts.wide) {
    atomicAdd(static_cast<unsigned long long*>(counts.data) + i, static_cast<unsigned long long>(count));
  } else {
    atomicAdd(static_cast<unsigned*>(counts.data) + i, count);
  }
}

// A block a part of a row. The counts are zero before.
template <typename Bins>
__global__ void __launch_bounds__(kThreads) count_parts(const __grid_constant__ CountTask task, Bins bins) {
  using Item = typename Bins::Item;
  constexpr int kInFlight = 8;  // loads before the first use
  extern __shared__ uint4 shared_memory[];
  unsigned* const counters = reinterpret_cast<unsigned*>(reinterpret_cast<char*>(shared_memory) + Bins::kSharedBytes);
  const CountBinsOperands& operands = task.operands;
  const int64_t row = blockIdx.x / task.parts;
  const int64_t begin = (blockIdx.x - row * task.parts) * task.part;
  const int64_t end = minimum(begin + task.part, operands.length);
  const int bin_count = static_cast<int>(operands.bins);
  const int copies = task.copies;
  const int copy = static_cast<int>(threadIdx.x) & (copies - 1);
  for (int i = threadIdx.x; i < bin_count * copies; i += kThreads) counters[i] = 0;
  bins.prepare(task, row, shared_memory);
  __syncthreads();

  const Item* const items = static_cast<const Item*>(operands.x) + row * operands.x_stride;
  const auto count = [&](Item item) {
    const int bin = bins(item);
    if (bin != kNoBin) atomicAdd(counters + bin * copies + copy, 1u);
  };
  int64_t at = begin + threadIdx.x;
  for (; at + (kInFlight - 1) * kThreads < end; at += kInFlight * kThreads) {
    Item item[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) item[i] = items[at + i * kThreads];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) count(item[i]);
  }
  for (; at < end; at += kThreads) count(items[at]);
  __syncthreads();

  for (int bin = threadIdx.x; bin < bin_count; bin += kThreads) {
    unsigned sum = 0;
    // Each thread begins with a copy of its own: they lie in different banks.
    for (int i = 0; i < copies; ++i) sum += counters[bin * copies + ((i + threadIdx.x) & (copies - 1))];
    if (sum > 0) add_to(operands.counts, row * bin_count + bin, sum);
  }
}

}  // namespace mgpu::cuda::counting
