// These kernels serve operators whose states are integers, if the order of items does
// not matter (`in_any_order`). A block combines its items by atomic operations in a
// table in shared memory, and then combines the table with the states in device memory.
// If the table does not hold all results, the first result to reach an entry keeps it,
// and items of other results go directly to device memory. docs/notes/by_id.md has the
// trials.
#pragma once

#include "algorithm/quotient.h"
#include "cuda/block/shuffle.cuh"
#include "cuda/ptx.cuh"
#include "ops/reduce_by_id/plan.h"

namespace mgpu::cuda::id_combining {

constexpr int kThreads = 1024;
constexpr int kMaxTaggedEntries = 8192;
constexpr uint32_t kNobody = ~uint32_t{0};
constexpr int64_t kMaxPartItems = int64_t{1} << 30;  // items per block, before Part rounds up
static_assert(kMaxPartItems + kMaxIdColumns <= int64_t{1} << 31);

constexpr int kInFlight = 4;  // items that a thread combines at a time; as many more are loaded ahead

template <typename Operator>
struct IdCombination {
  using State = typename Operator::State;
  const typename Operator::Element* x;
  IndexVector ids;
  int64_t x_stride;
  int64_t ids_stride;
  Segments segments;
  Quotient width;
  int64_t size;
  int64_t slots;  // results per problem
  int64_t parts;
  int entries;    // the entries of a block's table: a power of two if it does not hold all results
  State* states;  // the states of each problem's slots
  ResultVector<Operator> result;

  // The problem of this block.
  __device__ int64_t problem() const { return blockIdx.x / static_cast<unsigned>(parts); }
};

template <typename Operator>
struct Part {
  using Element = typename Operator::Element;
  static constexpr int kVectorBytes = kInFlight * static_cast<int>(sizeof(Element));

  const Element* x;
  IndexVector ids;
  int64_t first_row;
  int64_t size;
  Quotient width;
  unsigned count;
  bool has_vectors;

  // More than two columns of one id are loaded as a vector only if the block's table holds all
  // results.
  __device__ Part(const IdCombination<Operator>& combination, bool in_table)
      : size(combination.size), width(combination.width) {
    const int64_t problem = combination.problem(), part = blockIdx.x - problem * combination.parts;
    const unsigned vector_ids = width.divisor < kInFlight ? kInFlight / width.divisor : 1;
    const int64_t live = combination.segments.live(problem),
                  share = ceil_div<int64_t>(combination.segments.length, combination.parts * vector_ids) * vector_ids;
    first_row = minimum(part * share, live);
    count = static_cast<unsigned>((minimum(first_row + share, live) - first_row) * width.divisor);
    x = combination.x + (problem * combination.x_stride + first_row) * width.divisor;
    ids = combination.ids.from(problem * combination.ids_stride + first_row);
    const unsigned id_bytes = vector_ids * (ids.wide ? sizeof(int64_t) : sizeof(int32_t));
    has_vectors = (width.divisor <= 2 || (in_table && width.divisor % kInFlight == 0)) &&
                  reinterpret_cast<uintptr_t>(x) % minimum(kVectorBytes, 16) == 0 &&
                  reinterpret_cast<uintptr_t>(ids.data) % minimum(id_bytes, 16u) == 0;
  }

  // Calls use(elements, slots, row_of) for kInFlight items of each thread at a time. `slots` are the slots of the
  // items' results, or kNobody, and row_of(k) is the row of item k. All threads of a warp make each call together.
  // Items are loaded one call ahead, and the first ones before begin() is called.
  template <typename Use, typename Begin>
  __device__ __forceinline__ void for_each(Use use, Begin begin) const {
    with_width<void>(ids, [&](auto ids) {
      const unsigned done = has_vectors ? count / kInFlight * kInFlight : 0;
      if (done > 0) for_each_vector(ids.data, done, use, begin);
      if (done < count) for_each_item(ids.data, done, use, begin);
    });
  }
  template <typename Use>
  __device__ __forceinline__ void for_each(Use use) const {
    for_each(use, [] {});
  }

 private:
  // The first thread of this thread's warp. A warp whose first item is past the end makes no more calls.
  __device__ __forceinline__ static unsigned warp_begin() { return threadIdx.x / kWarp * kWarp; }

  template <typename Id>
  __device__ __forceinline__ uint32_t slot_of(Id id, unsigned column, bool inside) const {
    bool has_result = false;
    if constexpr (sizeof(Id) == 4) {
      has_result = static_cast<uint32_t>(id) < static_cast<uint32_t>(minimum(size, int64_t{1} << 31)) && inside;
    } else {
      has_result = static_cast<uint64_t>(id) < static_cast<uint64_t>(size) && inside;
    }
    return has_result ? static_cast<uint32_t>(id) * width.divisor + column : kNobody;
  }

  // Takes neighbouring items that are loaded at once: items of one id, or of several ids with one or two columns.
  template <typename Id, typename Use, typename Begin>
  __device__ __forceinline__ void for_each_vector(const Id* ids, unsigned end, Use use, Begin begin) const {
    Element next[kInFlight];
    Id next_ids[kInFlight];
    const auto fetch = [&](unsigned from) {
      const unsigned item = minimum(from, end - kInFlight);
      cuda::load_bytes<kVectorBytes>(next, x + item);
      if (width.divisor == 1) {
        cuda::load_bytes<kInFlight * sizeof(Id)>(next_ids, ids + item);
      } else if (width.divisor == 2) {
        cuda::load_bytes<kInFlight / 2 * sizeof(Id)>(next_ids, ids + item / 2);
      } else {
        next_ids[0] = ids[width(item)];
      }
    };
    const unsigned step = kInFlight * blockDim.x;
    fetch(threadIdx.x * kInFlight);
    begin();
#pragma unroll 1
    for (unsigned first = 0; first + warp_begin() * kInFlight < end; first += step) {
      const unsigned item = first + threadIdx.x * kInFlight;
      Element elements[kInFlight];
      uint32_t slots[kInFlight];
      memcpy(elements, next, sizeof(next));
      if (width.divisor == 1) {
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) slots[k] = slot_of(next_ids[k], 0, item < end);
      } else if (width.divisor == 2) {
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) slots[k] = slot_of(next_ids[k / 2], k % 2, item < end);
      } else {
        const uint32_t slot = slot_of(next_ids[0], item - width(item) * width.divisor, item < end);
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) slots[k] = slot == kNobody ? kNobody : slot + k;
      }
      fetch(item + step);
      use(elements, slots, [&](int k) { return first_row + width(item + k); });
    }
  }

  // Past the end, the last item is loaded again, as loads behind branches would wait for each
  // other.
  template <typename Id, typename Use, typename Begin>
  __device__ __forceinline__ void for_each_item(const Id* ids, unsigned from, Use use, Begin begin) const {
    Element next[kInFlight];
    Id next_ids[kInFlight];
    const auto item_of = [&](unsigned first, int k) { return first + k * blockDim.x + threadIdx.x; };
    const auto fetch = [&](unsigned first) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const unsigned item = minimum(item_of(first, k), count - 1);
        next_ids[k] = ids[width(item)];
        next[k] = x[item];
      }
    };
    fetch(from);
    if (from == 0) begin();
#pragma unroll 1
    for (unsigned first = from; first + warp_begin() < count; first += kInFlight * blockDim.x) {
      Element elements[kInFlight];
      uint32_t slots[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const unsigned item = item_of(first, k);
        slots[k] = slot_of(next_ids[k], item - width(item) * width.divisor, item < count);
        elements[k] = next[k];
      }
      fetch(first + kInFlight * blockDim.x);
      use(elements, slots, [&](int k) { return first_row + width(item_of(first, k)); });
    }
  }
};

template <typename Element, typename Word, ArithmeticKind kKind>
__device__ void combine_atomically(const Arithmetic<Element, Word, kKind>&, Word* to, Word state) {
  if constexpr (sizeof(Word) == 8) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(state));
  } else {
    atomicAdd(to, state);
  }
}

template <typename Operator, typename Word>
  requires(Operator::kIsMinimum)
__device__ void combine_atomically(const Operator&, Word* to, Word state) {
  if constexpr (sizeof(Word) == 8) {
    atomicMin(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(state));
  } else {
    atomicMin(to, state);
  }
}

template <typename Element, typename Word>
__device__ void combine_atomically(const Bitwise<Element>& op, Word* to, Word state) {
  using Bits = std::conditional_t<sizeof(Word) == 8, unsigned long long, unsigned>;
  auto* const bits = reinterpret_cast<Bits*>(to);
  switch (op.kind) {
    case OperatorKind::kAnd: atomicAnd(bits, static_cast<Bits>(state)); return;
    case OperatorKind::kOr: atomicOr(bits, static_cast<Bits>(state)); return;
    default: atomicXor(bits, static_cast<Bits>(state)); return;
  }
}

// The table's entry for a slot, and the reverse: spreads the slots of one column over the banks of shared memory.
__device__ __forceinline__ unsigned entry_of(uint32_t slot) { return slot ^ (slot >> 5 & 31); }

MGPU_HOST_DEVICE int64_t whole_entries(int64_t slots) { return ceil_div<int64_t>(slots, 32) * 32; }

// The places of the states of a thread's items, in the block's
// table or in device memory. A table of all results has no tags.
template <bool kHoldsAll, int kItems>
class Places {
 public:
  __device__ __forceinline__ Places(const uint32_t (&slots)[kItems], uint32_t* tags, int entries) : slots_(slots) {
    if constexpr (!kHoldsAll) {
      mask_ = static_cast<unsigned>(entries - 1);
      uint32_t owners[kItems];
#pragma unroll
      for (int k = 0; k < kItems; ++k) owners[k] = *static_cast<volatile uint32_t*>(tags + entry(k));
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if (owners[k] == kNobody && slots[k] != kNobody) {
          owners[k] = atomicCAS(tags + entry(k), kNobody, slots[k]);
          if (owners[k] == kNobody) owners[k] = slots[k];
        }
        in_table_[k] = owners[k] == slots[k];
      }
    }
  }

  __device__ __forceinline__ bool is_used(int k) const { return slots_[k] != kNobody; }

  __device__ __forceinline__ bool in_table(int k) const { return kHoldsAll || in_table_[k]; }

  // If the item has no result, returns an address that may be read.
  template <typename State>
  __device__ __forceinline__ State* address(int k, State* table, State* states) const {
    if constexpr (kHoldsAll) return table + (is_used(k) ? entry_of(slots_[k]) : 0);
    return in_table_[k] ? table + entry(k) : states + (is_used(k) ? slots_[k] : 0);
  }

  // Calls use(place), in separate code for each kind of memory.
  template <typename State, typename Use>
  __device__ __forceinline__ void visit(int k, State* table, State* states, Use use) const {
    if constexpr (kHoldsAll) {
      use(table + entry_of(slots_[k]));
    } else if (in_table_[k]) {
      use(table + entry(k));
    } else {
      use(states + slots_[k]);
    }
  }

 private:
  // Spreads slots whose low bits are equal.
  __device__ __forceinline__ unsigned entry(int k) const {
    constexpr unsigned kSpread = 5461;
    return (entry_of(slots_[k]) + (slots_[k] >> 14) * kSpread) & mask_;
  }

  const uint32_t (&slots_)[kItems];
  unsigned mask_ = 0;
  bool in_table_[kItems];
};

// Whether all lanes of a
// warp have the same slot.
__device__ __forceinline__ bool are_alike(uint32_t slot) {
  return __all_sync(0xffffffffu, slot == __shfl_sync(0xffffffffu, slot, 0));
}

// Reads a state that other threads change; the value may be out of date. If an item does
// not change an old value by an idempotent operator, it does not change the current one.
template <typename State>
__device__ __forceinline__ State read_state(const State* at) {
  return *static_cast<const volatile State*>(at);
}

template <typename Operator>
__global__ void fill_states(IdCombination<Operator> combination, Operator op) {
  start_next_kernel();
  const int64_t count = combination.segments.rows * combination.slots;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) combination.states[i] = op.identity();
}

template <bool kHoldsAll, typename Operator>
__global__ void __launch_bounds__(kThreads) combine_items(IdCombination<Operator> combination, Operator op) {
  start_next_kernel();
  using State = typename Operator::State;
  extern __shared__ uint64_t shared[];
  auto* const table = reinterpret_cast<State*>(shared);
  auto* const tags = reinterpret_cast<uint32_t*>(table + combination.entries);  // unused if the table holds all results
  for (int i = threadIdx.x; i < combination.entries; i += kThreads) {
    table[i] = op.identity();
    if constexpr (!kHoldsAll) tags[i] = kNobody;
  }

  const Part<Operator> items(combination, kHoldsAll);
  State* const states = combination.states + combination.problem() * combination.slots;
  __syncthreads();
  if constexpr (!kHoldsAll) wait_for_last_kernel();  // the states are filled

  items.for_each([&](auto& elements, uint32_t (&slots)[kInFlight], auto row_of) {
    State made[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) made[k] = op.extract(elements[k], row_of(k));
    const Places<kHoldsAll, kInFlight> places(slots, tags, combination.entries);
    if constexpr (Operator::kIsIdempotent) {
      State seen[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) seen[k] = read_state(places.address(k, table, states));
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (places.is_used(k) && op.combine(seen[k], made[k]) != seen[k]) {
          places.visit(k, table, states, [&](State* to) { combine_atomically(op, to, made[k]); });
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        bool is_used = places.is_used(k);
        if (are_alike(slots[k])) {
          made[k] = fold_warp(made[k], [&](const State& a, const State& b) { return op.combine(a, b); });
          is_used &= threadIdx.x % kWarp == 0;
        }
        if (is_used) places.visit(k, table, states, [&](State* to) { combine_atomically(op, to, made[k]); });
      }
    }
  });
  __syncthreads();
  if constexpr (kHoldsAll) wait_for_last_kernel();
  for (int i = threadIdx.x; i < combination.entries; i += kThreads) {
    const State state = table[i];
    if (state == op.identity()) continue;
    State* const to = states + (kHoldsAll ? entry_of(i) : tags[i]);
    if (!Operator::kIsIdempotent || op.combine(read_state(to), state) != read_state(to))
      combine_atomically(op, to, state);
  }
}

template <typename Operator>
__global__ void finish_states(IdCombination<Operator> combination, Operator op) {
  wait_for_last_kernel();
  const int64_t count = combination.segments.rows * combination.slots;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) combination.result.store(i, op.finish(combination.states[i], 0));
}

}  // namespace mgpu::cuda::id_combining
