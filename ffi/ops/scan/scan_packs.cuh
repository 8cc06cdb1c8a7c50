// Scans whole rows of up to 32 vectors, several per warp (packed_rows.cuh). Each lane has 16 bytes of memory, wherever
// rows begin, and its scan restarts at each row's begin.
#pragma once

#include "cuda/block/packed_rows.cuh"
#include "ops/scan/problem.cuh"

namespace mgpu::cuda::scanning {

// The position of a lane's items in a pack, the rows that a warp scans at once. Rows and places in them are counted in
// the order of the scan.
template <int kVector>
struct PackedVector {
  int at;           // the distance of the first item in memory from the start of the pack
  int row;          // the row of the first item in the order of the scan
  int place;        // the place in that row
  unsigned starts;  // bit k: whether item k begins a row; bit kVector: the next lane's first item
  int back;         // how many lanes back the row of this lane's last item begins

  // `lead` items of the pack's first vector belong to the previous pack.
  __device__ __forceinline__ PackedVector(const PackedRows& packed, bool reverse, int lead) {
    const int lane = threadIdx.x % kWarp;
    const int length = static_cast<int>(packed.length.divisor);
    at = reverse ? packed.rows * length + lead - (lane + 1) * kVector : lane * kVector - lead;
    const int from_row_before = lane * kVector - lead + length;
    row = static_cast<int>(packed.length.quotient(static_cast<unsigned>(from_row_before)));
    place = from_row_before - row * length;
    --row;
    starts = 0;
#pragma unroll 1
    for (int k = place == 0 ? 0 : length - place; k <= kVector; k += length) starts |= 1u << k;
    back = starts & ((1u << kVector) - 1) ? 0 : (place + kVector - 1) / kVector;
  }

  __device__ __forceinline__ bool starts_row(int k) const { return (starts >> k & 1) != 0; }
  __device__ __forceinline__ int row_of(int k) const { return row + __popc(starts & ((2u << k) - 2)); }
};

// The most packs of a warp. It loads them all before it
// scans the first one.
template <typename Operator>
constexpr int kPacks = maximum(1, static_cast<int>(sizeof(typename Operator::Element)) / 2);

// Whether rows fit packs, and packs are faster than short_rows.cuh. If
// packs share vectors, wide states and counts take more instructions here.
template <typename Operator>
bool takes_packs(const PackedRows& packed, const Segments& segments) {
  if (packed.rows == 0) return false;
  return !packed.shares_vectors || (sizeof(typename Operator::State) <= 4 && !segments.counts.given());
}

// The packs that a warp scans. The position of the first one needs 64 bits; positions relative to it need 32 bits.
template <typename Operator>
struct WarpPacks {
  using State = typename Operator::State;
  using Items = Vector<typename Operator::Element>;
  static constexpr int kVector = Items::kItems;

  const ScanTask<Operator>& task;
  const PackedRows& packed;
  const Operator& op;
  int length;
  int pack_items;
  int64_t first_row;
  int64_t begin;
  int size;
  PackedVector<kVector> unshared;

  __device__ __forceinline__ WarpPacks(const ScanTask<Operator>& task, const PackedRows& packed, const Operator& op)
      : task(task),
        packed(packed),
        op(op),
        length(static_cast<int>(packed.length.divisor)),
        pack_items(packed.rows * length),
        first_row((int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp * (kPacks<Operator> * packed.rows)),
        begin(first_row * length),
        size(static_cast<int>(clamp<int64_t>(task.segments.rows - first_row, 0, kPacks<Operator> * packed.rows)) *
             length),
        unshared(packed, task.reverse, 0) {}

  __device__ __forceinline__ bool exists(int pack) const { return pack * pack_items < size; }

  // The lane's vector in a pack.
  __device__ __forceinline__ PackedVector<kVector> vector(int pack) const {
    if (!packed.shares_vectors) return unshared;
    const auto edge = static_cast<unsigned>(begin) + (pack + task.reverse) * pack_items;
    return {packed, task.reverse, static_cast<int>((task.reverse ? -edge : edge) % kVector)};
  }

  __device__ __forceinline__ void load(int pack, Items& items) const {
    const int at = pack * pack_items + vector(pack).at;
    if (at <= -kVector || at >= size) return;
    const bool ends_array = task.segments.total() - begin < size + kVector;
    if (!ends_array || at + kVector <= size) {
      items = Items::load(task.x + begin, at);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (at + k < size) items.items[k] = task.x[begin + at + k];
      }
    }
  }

  // The row in memory that has this number in the order of the scan.
  __device__ __forceinline__ int64_t row_in_memory(int pack, int row) const {
    return first_row + pack * packed.rows + (task.reverse ? packed.rows - 1 - row : row);
  }

  // The dead items of a vector (past their row's count), as a bitmap, found row by row.
  __device__ __forceinline__ unsigned dead_items(int pack, const PackedVector<kVector>& vector) const {
    const auto bits = [](int begin, int count) { return ((1u << count) - 1) << begin; };
    unsigned dead = 0;
    int row = vector.row, place = vector.place;
#pragma unroll 1
    for (int k = 0; k < kVector; ++row, place = 0) {
      const int size = minimum(length - place, kVector - k);
      const int64_t in_memory = row_in_memory(pack, row);
      const bool exists = in_memory >= 0 && in_memory < task.segments.rows;
      const int live = exists ? static_cast<int>(task.segments.live(in_memory)) : length;
      if (task.reverse) {
        dead |= bits(k, clamp(length - live - place, 0, size));
      } else {
        const int first_dead = clamp(live - place, 0, size);
        dead |= bits(k + first_dead, size - first_dead);
      }
      k += size;
    }
    return dead;
  }

  // Replaces the states of a vector, in the order of the scan, by their scan, which restarts at each row's first item.
  // Returns the state of the last item before the vector.
  __device__ __forceinline__ State scan(const PackedVector<kVector>& vector, State (&states)[kVector]) const {
#pragma unroll
    for (int k = 1; k < kVector; ++k) {
      states[k] = choose(vector.starts_row(k), states[k], op.combine(states[k - 1], states[k]));
    }
    State up_to = states[kVector - 1];
    for (int distance = 1; distance <= packed.most_back; distance *= 2) {
      const State below = shuffle_up(up_to, distance);
      if (distance <= vector.back) up_to = op.combine(below, up_to);
    }
    const State before = shuffle_up(up_to, 1);
    bool carries = true;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      carries = carries && !vector.starts_row(k);
      states[k] = choose(carries, op.combine(before, states[k]), states[k]);
    }
    return before;
  }

  __device__ __forceinline__ void scan(int pack, Items& items) const {
    const PackedVector<kVector> vector = this->vector(pack);
    const int at = pack * pack_items + vector.at;
    const int first = pack * pack_items;
    const int last = minimum(size, first + pack_items);
    const auto is_own = [&](int place) { return place >= first && place < last; };
    const auto in_memory = [&](int k) { return at + (task.reverse ? kVector - 1 - k : k); };

    if (task.reverse) mirror(items.items);
    State states[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) states[k] = op.extract(items.items[k], begin + in_memory(k));
    unsigned dead = 0;
    if (task.segments.counts.given()) {
      dead = dead_items(pack, vector);
#pragma unroll
      for (int k = 0; k < kVector; ++k) states[k] = choose((dead >> k & 1) != 0, op.identity(), states[k]);
    }
    const State before = scan(vector, states);

    const auto row_of = [&](int k) { return row_in_memory(pack, vector.row_of(k)); };
    const auto finish = [&](const State& state, int k) {
      return op.finish(state, Operator::kGivesIndex ? row_of(k) * length : 0);
    };
    if (task.totals.given()) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (vector.starts_row(k + 1) && is_own(in_memory(k))) task.totals.store(row_of(k), finish(states[k], k));
      }
    }
    typename Operator::Result results[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const State previous = choose(vector.starts_row(k), op.identity(), k == 0 ? before : states[maximum(k - 1, 0)]);
      results[k] = finish(choose(task.exclusive, previous, states[k]), k);
    }
    if (dead != 0) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) results[k] = dead >> k & 1 ? op.dead() : results[k];
    }
    if (task.reverse) mirror(results);
    if (at >= first && at + kVector <= last) {
      store_results(task.result, begin + at, results);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (is_own(at + k)) task.result.store(begin + at + k, results[k]);
      }
    }
  }
};

template <typename Operator>
__global__ void __launch_bounds__(kThreads) scan_packs(const __grid_constant__ ScanTask<Operator> task,
                                                       const __grid_constant__ PackedRows packed, Operator op) {
  const WarpPacks<Operator> packs(task, packed, op);
  if (!packs.exists(0)) return;
  Vector<typename Operator::Element> items[kPacks<Operator>];
#pragma unroll
  for (int i = 0; i < kPacks<Operator>; ++i) packs.load(i, items[i]);
#pragma unroll
  for (int i = 0; i < kPacks<Operator>; ++i) {
    if (!packs.exists(i)) break;
    packs.scan(i, items[i]);
  }
}

}  // namespace mgpu::cuda::scanning
