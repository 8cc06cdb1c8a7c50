// A block counts a part of a row in shared memory, and adds it to the row's counts.
#pragma once

#include "algorithm/key_order.h"
#include "algorithm/partition_point.h"
#include "cuda/block/partition.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/shared_counters.cuh"
#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/count_bins/plan.h"

namespace mgpu::cuda::counting {

constexpr int kThreads = kCountBinsThreads;
constexpr int kNoBin = -1;

struct CountTask {
  CountBinsOperands operands;
  int64_t parts;
  int64_t part;
  int copies;  // the copies of each counter, a power of two
};

template <typename Item_>
struct NumberedBins {
  using Item = Item_;
  static constexpr int kSharedBytes = 0;
  int64_t bins;

  template <typename Visit>
  __device__ void with_bins(const CountTask& /*task*/, int64_t /*row*/, void* /*shared*/, Visit visit) const {
    visit([this](Item number) {
      const bool is_bin = static_cast<uint64_t>(static_cast<int64_t>(number)) < static_cast<uint64_t>(bins);
      return is_bin ? static_cast<int>(number) : kNoBin;
    });
  }
};

// Integers are compared by their codes, floats directly.
template <typename Order>
struct Comparable {
  using Word = typename Order::Word;
  using Value = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;
  __device__ __forceinline__ static Value from_key(const Order& order, Word key) { return order.encode(key); }
  __device__ static Value greatest() { return static_cast<Value>(~Value{0}); }
};
template <typename Word_>
struct Comparable<FloatOrder<Word_>> {
  using Word = Word_;
  using Value = std::conditional_t<sizeof(Word) == 8, double, float>;
  __device__ __forceinline__ static Value from_key(const FloatOrder<Word>& order, Word key) {
    if constexpr (sizeof(Word) == 8) {
      return __longlong_as_double(static_cast<long long>(key));
    } else if constexpr (sizeof(Word) == 4) {
      return __uint_as_float(key);
    } else {
      constexpr Word kBfloat16Mantissa = 0x7f;
      return order.mantissa == kBfloat16Mantissa ? __uint_as_float(unsigned{key} << 16) : half_to_float(key);
    }
  }
  __device__ static Value greatest() { return static_cast<Value>(__int_as_float(0x7f800000)); }
};

// Maps the values from the lowest edge to the highest to slots from 0 to `slots_end` - 1. The slot never decreases as
// the value increases.
template <typename Value>
struct IntegerSlots {
  Value lowest = 0;
  int shift = 0;

  __device__ IntegerSlots(Value lowest, Value highest, int slots_end) : lowest(lowest) {
    while (static_cast<Value>(highest - lowest) >> shift >= static_cast<Value>(slots_end)) ++shift;
  }
  __device__ __forceinline__ unsigned operator()(Value x) const { return static_cast<unsigned>((x - lowest) >> shift); }
};

// Slots by the bits of a float, which are made to increase with it. The width of a slot grows with the magnitude.
template <typename Value>
struct SpreadSlots {
  unsigned lowest = 0;
  int shift = 0;

  __device__ SpreadSlots(Value lowest_value, Value highest, int slots_end) : lowest(bits(lowest_value)) {
    while ((bits(highest) - lowest) >> shift >= static_cast<unsigned>(slots_end)) ++shift;
  }
  __device__ __forceinline__ unsigned operator()(Value x) const { return (bits(x) - lowest) >> shift; }

 private:
  __device__ __forceinline__ static unsigned bits(Value x) {
    const int word = __float_as_int(static_cast<float>(x) + 0.0f);  // both zeros get the same bits
    return static_cast<unsigned>(word < 0 ? ~word : word ^ static_cast<int>(0x80000000u));
  }
};

// Floats from 2^23 to 2^24 are one apart, so the bits of scale * x + offset count slots of equal width. The bits
// increase with the float only if it is positive; `fits` says whether the slots can be used.
template <typename Value>
struct EvenSlots {
  float scale = 0, offset = 0;
  unsigned lowest = 0;
  bool fits = false;

  __device__ EvenSlots(Value lowest_value, Value highest, int slots_end) {
    constexpr float kCentre = 12582912;  // 2^23 + 2^22
    const float low = static_cast<float>(lowest_value), high = static_cast<float>(highest);
    scale = static_cast<float>(slots_end - 8) / (high - low);
    offset = kCentre - scale * (low / 2 + high / 2);
    lowest = bits(lowest_value);
    fits =
        scale > 0 && scale < 1e30f && lowest < 0x7f800000u && bits(highest) - lowest < static_cast<unsigned>(slots_end);
  }
  __device__ __forceinline__ unsigned operator()(Value x) const { return bits(x) - lowest; }

 private:
  __device__ __forceinline__ unsigned bits(Value x) const {
    return __float_as_uint(fmaf(static_cast<float>(x), scale, offset));
  }
};

// Finds bins by slots, which are ranges of values, and a table of the edges in each slot.
// An item in a slot of several edges needs a search.
template <typename Order>
struct BinsBetweenEdges {
  using Item = typename Order::Word;
  using Word = Item;
  using Value = typename Comparable<Order>::Value;
  struct Slot {
    Value edge;
    int bin;  // the bin of items not below the edge (lower items: the previous bin); if negative, the edges to search
  };
  static constexpr int kThreadSlots = kEdgeSlots / kThreads;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kCountBits = ceil_log2(kMaxCountedEdges);
  static_assert(kEdgeSlots % kThreads == 0);
  struct Shared {
    Value edges[kMaxCountedEdges];
    Slot slots[kEdgeSlots];
    int warp_sums[kWarps];
  };
  static constexpr int kSharedBytes = sizeof(Shared);

  Order order;

  // All threads of the block call it. visit(bin_of) counts the items.
  template <typename Visit>
  __device__ void with_bins(const CountTask& task, int64_t row, void* memory, Visit visit) const {
    Shared& table = *static_cast<Shared*>(memory);
    const int edges = static_cast<int>(task.operands.edge_count);
    const Word* const keys = static_cast<const Word*>(task.operands.edges) + row * task.operands.edges_stride;
    for (int i = threadIdx.x; i < edges; i += kThreads) table.edges[i] = Comparable<Order>::from_key(order, keys[i]);
    __syncthreads();
    const Value lowest = table.edges[0];
    const Value highest = order.is_nan(keys[edges - 1]) ? Comparable<Order>::greatest() : table.edges[edges - 1];
    const auto visit_slots = [&](const auto& slots) {
      fill_slots(table, edges - 2, lowest, slots);
      visit([&table, lowest, highest, slots, this](Word key) { return bin_of(table, lowest, highest, slots, key); });
    };
    if constexpr (Order::kTotal) {
      visit_slots(IntegerSlots<Value>(lowest, highest, kEdgeSlots));
    } else {
      const EvenSlots<Value> even(lowest, highest, kEdgeSlots);
      const SpreadSlots<Value> spread(lowest, highest, kEdgeSlots);
      if (even.fits && crowding(table, edges - 1, even) <= crowding(table, edges - 1, spread)) {
        visit_slots(even);
      } else {
        visit_slots(spread);
      }
    }
  }

 private:
  template <typename Slots>
  __device__ static int crowding(const Shared& table, int edges, const Slots& slots) {
    int crowded = 0;
    for (int begin = 1; begin < edges; begin += kThreads) {
      const int i = begin + static_cast<int>(threadIdx.x);
      crowded += __syncthreads_count(i < edges && slots(table.edges[i]) == slots(table.edges[i - 1]));
    }
    return crowded;
  }

  template <typename Slots>
  __device__ static void fill_slots(Shared& table, int inner, Value lowest, const Slots& slots) {
    for (int slot = threadIdx.x; slot < kEdgeSlots; slot += kThreads) table.slots[slot].bin = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < inner; i += kThreads) {
      const unsigned slot = slots(table.edges[i + 1]);
      if (slot < kEdgeSlots) atomicAdd(&table.slots[slot].bin, 1);  // a NaN has none
    }
    __syncthreads();
    Slot* const own = table.slots + threadIdx.x * kThreadSlots;
    int counts[kThreadSlots], sum = 0;
#pragma unroll
    for (int i = 0; i < kThreadSlots; ++i) sum += counts[i] = own[i].bin;
    int begin = sum_block<kWarps>(table.warp_sums, sum).before;
#pragma unroll
    for (int i = 0; i < kThreadSlots; ++i) {
      own[i] = counts[i] == 0   ? Slot{lowest, begin}
               : counts[i] == 1 ? Slot{table.edges[begin + 1], begin + 1}
                                : Slot{lowest, static_cast<int>(0x80000000u | begin << kCountBits | counts[i])};
      begin += counts[i];
    }
    __syncthreads();
  }

  template <typename Slots>
  __device__ __forceinline__ int bin_of(const Shared& table, Value lowest, Value highest, const Slots& slots,
                                        Word key) const {
    const Value value = Comparable<Order>::from_key(order, key);
    if (!(value >= lowest && value <= highest)) return kNoBin;
    const Slot slot = table.slots[slots(value)];
    if (slot.bin >= 0) return slot.bin - (value < slot.edge);
    // The bin is the number of inner edges that are not above the value: all edges before this slot, and some in it.
    int begin = slot.bin >> kCountBits & ((1 << kCountBits) - 1);
    int end = begin + (slot.bin & ((1 << kCountBits) - 1));
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (value >= table.edges[middle + 1]) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
};

__device__ inline void add_to(const IndexResult& counts, int64_t i, unsigned count) {
  if (counts.wide) {
    atomicAdd(static_cast<unsigned long long*>(counts.data) + i, static_cast<unsigned long long>(count));
  } else {
    atomicAdd(static_cast<unsigned*>(counts.data) + i, count);
  }
}

// One block per part of a row. The caller zeroes the counts.
template <typename Bins>
__global__ void __launch_bounds__(kThreads) count_parts(const __grid_constant__ CountTask task, Bins bins) {
  using Item = typename Bins::Item;
  using Vector = Vector<Item>;
  constexpr int kInFlight = minimum<int>(sizeof(Item), 4);  // vectors
  extern __shared__ uint4 shared_memory[];
  unsigned* const counters = reinterpret_cast<unsigned*>(reinterpret_cast<char*>(shared_memory) + Bins::kSharedBytes);
  const CountBinsOperands& operands = task.operands;
  const int64_t row = blockIdx.x / task.parts;
  const int64_t begin = (blockIdx.x - row * task.parts) * task.part;
  const int64_t end = minimum(begin + task.part, operands.length);
  const int bin_count = static_cast<int>(operands.bins);
  const int copies = task.copies;
  const SharedCounters own(counters + (static_cast<int>(threadIdx.x) & (copies - 1)));
  for (int i = threadIdx.x; i < bin_count * copies; i += kThreads) counters[i] = 0;
  __syncthreads();
  const Item* const items = static_cast<const Item*>(operands.x) + row * operands.x_stride;
  const auto misplaced =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(items + begin) % sizeof(Vector) / sizeof(Item));
  const int64_t first = minimum(end, misplaced == 0 ? begin : begin + Vector::kItems - misplaced);
  const int64_t last = first + (end - first) / Vector::kItems * Vector::kItems;
  bins.with_bins(task, row, shared_memory, [&](const auto& bin_of) {
    const auto count = [&](Item item) {
      const int bin = bin_of(item);
      if (bin != kNoBin) own.add_one(bin * copies);
    };
    if (begin + threadIdx.x < first) count(items[begin + threadIdx.x]);
    if (last + threadIdx.x < end) count(items[last + threadIdx.x]);
    constexpr int64_t kStep = kThreads * Vector::kItems;
    for (int64_t at = first + threadIdx.x * Vector::kItems; at < last; at += kInFlight * kStep) {
      Vector vectors[kInFlight];
#pragma unroll
      for (int v = 0; v < kInFlight; ++v) {
        if (at + v * kStep < last) vectors[v] = Vector::load(items, at + v * kStep);
      }
#pragma unroll
      for (int v = 0; v < kInFlight; ++v) {
        if (at + v * kStep >= last) break;
#pragma unroll
        for (int i = 0; i < Vector::kItems; ++i) count(vectors[v].items[i]);
      }
    }
  });
  __syncthreads();

  for (int bin = threadIdx.x; bin < bin_count; bin += kThreads) {
    unsigned sum = 0;
    // Threads start at different copies, against bank conflicts.
    for (int i = 0; i < copies; ++i) sum += counters[bin * copies + ((i + threadIdx.x) & (copies - 1))];
    if (sum > 0) add_to(operands.counts, row * bin_count + bin, sum);
  }
}

}  // namespace mgpu::cuda::counting
