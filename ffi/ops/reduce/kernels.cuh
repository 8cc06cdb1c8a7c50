// Blocks reduce chunks of rows. If rows have several chunks, one block per row
// then reduces the chunks' states. Other kernels take short rows, and WholeRows.
#pragma once

#include "cuda/block/packed_rows.cuh"
#include "cuda/block/shuffle.cuh"
#include "cuda/block/vectors.cuh"
#include "cuda/ptx.cuh"
#include "ops/reduce/plan.h"

namespace mgpu::cuda::reducing {

constexpr int kThreads = 256;

// The vectors that a thread loads before it uses the first.
template <typename Operator>
constexpr int kLoads = sizeof(typename Operator::Element) == 1 ? 2 : 4;

// Like kLoads, for a lane of
// reduce_short_rows with kMany.
template <typename Operator>
constexpr int kManyLoads = Operator::kGivesIndex || sizeof(typename Operator::Element) < 4 ||
                                   sizeof(typename Operator::State) > 8 || !Operator::kCommutes
                               ? kLoads<Operator>
                               : 8;

template <typename Operator>
struct Reduction {
  SourceOf<typename Operator::Element> x;
  bool aligned;
  Segments segments;
  int64_t chunk_items;
  int64_t chunks;
  typename Operator::State* states;
  ResultVector<Operator> result;
};

// The combination of x[begin .. end) in the order of the items, in lane 0 of `lanes` lanes, a power of two. All lanes
// of the warp call it with the same `span`, at least as large as any lane's end - begin.
template <typename Operator>
__device__ typename Operator::State fold_in_order(const Operator& op, const SourceOf<typename Operator::Element>& x,
                                                  bool aligned, int64_t begin, int64_t end, int64_t span, int lane,
                                                  int lanes) {
  using State = typename Operator::State;
  using Vector = Vector<typename Operator::Element>;
  constexpr int kVector = Vector::kItems;
  constexpr int kInFlight = sizeof(Vector) > 32 ? 2 : 4;
  const int64_t step = int64_t{lanes} * kVector;
  const bool has_vectors = aligned && begin % kVector == 0;
  State state = op.identity();
  for (int64_t offset = 0; offset < span; offset += kInFlight * step) {
    const int64_t first = begin + offset + lane * kVector;
    State sums[kInFlight];
    if (has_vectors && begin + offset + kInFlight * step <= end) {
      Vector vectors[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) vectors[k] = Vector::load(x, first + k * step);
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        sums[k] = op.extract(vectors[k].items[0], first + k * step);
#pragma unroll
        for (int i = 1; i < kVector; ++i) {
          sums[k] = op.combine(sums[k], op.extract(vectors[k].items[i], first + k * step + i));
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        sums[k] = op.identity();
#pragma unroll 1
        for (int64_t i = first + k * step; i < minimum(end, first + k * step + kVector); ++i) {
          sums[k] = op.combine(sums[k], op.extract(x[i], i));
        }
      }
    }
#pragma unroll 1
    for (int distance = 1; distance < lanes; distance *= 2) {
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) sums[k] = op.combine(sums[k], shuffle_down(sums[k], distance));
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) state = op.combine(state, sums[k]);
  }
  return state;
}

template <typename Operator>
MGPU_HOST_DEVICE bool has_float_instructions(const Operator& op) {
  if constexpr (std::is_same_v<Operator, ArgExtremum<uint32_t, typename Operator::State>>) {
    return op.order.negative_zero != 0;
  } else {
    return false;
  }
}

// Returns fold<Part>(). Part gathers a thread's items for a reduction whose items may be reordered.
template <typename Operator, typename Fold>
__device__ __forceinline__ typename Operator::State fold_by_part(const Operator& op, Fold fold) {
  using State = typename Operator::State;
  if constexpr (std::is_same_v<Operator, ArgExtremum<uint32_t, State>>) {
    if (has_float_instructions(op)) return fold.template operator()<GatheredFloats<State>>();
  }
  return fold.template operator()<Gathered<Operator>>();
}

template <int kInFlight, typename Operator>
__device__ typename Operator::State fold_any_order(const Operator& op, const Reduction<Operator>& reduction,
                                                   int64_t begin, int64_t end, int thread, int threads) {
  return fold_by_part(op, [&]<typename Part>() {
    return fold_strided<kInFlight, Part>(op, reduction.x, reduction.aligned, begin, end, thread, threads);
  });
}

// Thread 0 gets the combination of all threads' states. `shared` has room for one state per warp.
template <typename Operator>
__device__ typename Operator::State fold_block(const Operator& op, typename Operator::State state,
                                               typename Operator::State* shared) {
  const auto combine = [&](const auto& a, const auto& b) { return op.combine(a, b); };
  const int lane = threadIdx.x % kWarp;
  state = fold_warp(state, combine);
  if (lane == 0) shared[threadIdx.x / kWarp] = state;
  __syncthreads();
  if (threadIdx.x >= kWarp) return state;
  return fold_warp(lane < blockDim.x / kWarp ? shared[lane] : op.identity(), combine);
}

template <typename Operator>
__global__ void __launch_bounds__(kThreads) reduce_chunks(Reduction<Operator> reduction, Operator op) {
  start_next_kernel();
  __shared__ typename Operator::State shared[kThreads / kWarp];
  const int64_t row = blockIdx.x / reduction.chunks;
  const int64_t chunk = blockIdx.x - row * reduction.chunks;
  const int64_t row_begin = row * reduction.segments.length;
  const int64_t live = reduction.segments.live(row);
  const int64_t begin = row_begin + minimum(live, chunk * reduction.chunk_items);
  const int64_t end = row_begin + minimum(live, (chunk + 1) * reduction.chunk_items);
  typename Operator::State part;
  if constexpr (Operator::kCommutes) {
    part = fold_any_order<kLoads<Operator>>(op, reduction, begin, end, threadIdx.x, kThreads);
  } else {  // each warp takes a part of the chunk
    const int lane = threadIdx.x % kWarp;
    const int64_t share = reduction.chunk_items / (kThreads / kWarp);
    const int64_t first = begin + threadIdx.x / kWarp * share;
    part = fold_in_order(op, reduction.x, reduction.aligned, first, minimum(end, first + share), share, lane, kWarp);
    if (lane > 0) part = op.identity();
  }
  const auto state = fold_block(op, part, shared);
  if (threadIdx.x != 0) return;
  if (reduction.chunks == 1) {
    reduction.result.store(row, op.finish(state, row_begin));
  } else {
    reduction.states[blockIdx.x] = state;
  }
}

template <typename Operator>
__global__ void reduce_states(Reduction<Operator> reduction, Operator op) {
  wait_for_last_kernel();
  __shared__ typename Operator::State shared[kWarp];
  const int64_t row = blockIdx.x;
  auto state = op.identity();
  const int64_t share = ceil_div<int64_t>(reduction.chunks, blockDim.x);
  const int64_t end = minimum<int64_t>((threadIdx.x + 1) * share, reduction.chunks);
  for (int64_t i = threadIdx.x * share; i < end; ++i) {
    state = op.combine(state, reduction.states[row * reduction.chunks + i]);
  }
  state = fold_block(op, state, shared);
  if (threadIdx.x == 0) reduction.result.store(row, op.finish(state, row * reduction.segments.length));
}

// `lanes` is a power of two. kMany says that a lane has many vectors.
template <typename Operator, bool kMany = false>
__global__ void __launch_bounds__(kThreads) reduce_short_rows(Reduction<Operator> reduction, int lanes, Operator op) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) >> (__ffs(lanes) - 1);
  const int64_t row_begin = row * reduction.segments.length;
  auto state = op.identity();
  const int64_t live = row < reduction.segments.rows ? reduction.segments.live(row) : 0;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  if constexpr (Operator::kCommutes) {
    if (live > 0) {
      constexpr int kInFlight = kMany ? kManyLoads<Operator> : kLoads<Operator>;
      state = fold_any_order<kInFlight>(op, reduction, row_begin, row_begin + live, lane, lanes);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      state = op.combine(state, shuffle_down(state, distance));
    }
  } else {
    state = fold_in_order(op, reduction.x, reduction.aligned, row_begin, row_begin + live, reduction.segments.length,
                          lane, lanes);
  }
  if (row < reduction.segments.rows && lane == 0) {
    reduction.result.store(row, op.finish(state, row_begin));
  }
}

constexpr int kPacks = 2;
constexpr int kMinBlockVectors = 512;   // the fewest vectors of a row that a block reduces in equal shares
constexpr int kMaxShareThreads = 1024;  // the most threads of a row in equal shares

// Rows without dead items. A row is some whole
// vectors, or a half or a quarter of a vector.
template <typename Operator>
struct WholeRows {
  SourceOf<typename Operator::Element> x;
  ResultVector<Operator> result;
  int64_t rows;
  int length;
};

// A thread's share of the row that begins at `begin` is
// kVectors vectors of kItems items, interleaved with the other
// threads' vectors. No thread checks where the row ends.
template <typename Operator, int kItems, int kVectors>
__device__ __forceinline__ typename Operator::State fold_share(const WholeRows<Operator>& rows, const Operator& op,
                                                               int64_t begin, int thread, int threads) {
  using Element = typename Operator::Element;
  const auto items = rows.x + begin;
  Element vectors[kVectors][kItems];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    load_bytes<kItems* static_cast<int>(sizeof(Element))>(vectors[k], items + (k * threads + thread) * kItems);
  }
  Gathered<Operator> part(op, begin);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) part.take(vectors[k], (k * threads + thread) * kItems);
  return part.state();
}

template <typename Operator, int kItems, int kVectors>
__global__ void __launch_bounds__(kThreads)
    reduce_by_lanes(const __grid_constant__ WholeRows<Operator> rows, int lanes, Operator op) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) >> (__ffs(lanes) - 1);
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const bool exists = row < rows.rows;
  const int64_t begin = row * rows.length;
  auto state = exists ? fold_share<Operator, kItems, kVectors>(rows, op, begin, lane, lanes) : op.identity();
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    state = op.combine(state, shuffle_down(state, distance));
  }
  if (lane == 0 && exists) rows.result.store(row, op.finish(state, begin));
}

template <typename Operator, int kItems, int kVectors>
__global__ void __launch_bounds__(kMaxShareThreads)
    reduce_by_blocks(const __grid_constant__ WholeRows<Operator> rows, Operator op) {
  __shared__ typename Operator::State shared[kMaxShareThreads / kWarp];
  const int64_t begin = int64_t{blockIdx.x} * rows.length;
  const auto share = fold_share<Operator, kItems, kVectors>(rows, op, begin, threadIdx.x, blockDim.x);
  const auto state = fold_block(op, share, shared);
  if (threadIdx.x == 0) rows.result.store(blockIdx.x, op.finish(state, begin));
}

template <int kGroup, typename Operator>
__global__ void __launch_bounds__(kThreads)
    reduce_whole_rows(const __grid_constant__ WholeRows<Operator> rows, Operator op) {
  using Vector = Vector<typename Operator::Element>;
  constexpr int kInFlight = kLoads<Operator>;
  constexpr int kStride = kGroup * Vector::kItems;
  static_assert(Operator::kCommutes);
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kGroup) + threadIdx.x / kGroup;
  if (row >= rows.rows) return;
  const int thread = threadIdx.x % kGroup;
  const int64_t begin = row * rows.length;
  const auto items = rows.x + begin;
  auto state = fold_by_part(op, [&]<typename Part>() {
    Part part(op, begin);
#pragma unroll 1
    for (int offset = thread * Vector::kItems; offset < rows.length; offset += kInFlight * kStride) {
      const auto exists = [&](int k) { return offset + k * kStride < rows.length; };
      Vector vectors[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (exists(k)) vectors[k] = Vector::load(items, offset + k * kStride);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (exists(k)) part.take(vectors[k].items, offset + k * kStride);
      }
    }
    return part.state();
  });
  if constexpr (kGroup == kWarp) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      state = op.combine(state, shuffle_down(state, distance));
    }
  } else {
    static_assert(kGroup == kThreads);
    __shared__ typename Operator::State shared[kThreads / kWarp];
    state = fold_block(op, state, shared);
  }
  if (thread == 0) rows.result.store(row, op.finish(state, begin));
}

// A warp reduces kPacks packs. A pack is as many rows as 32
// vectors hold, one vector per lane.
template <typename Operator>
__global__ void __launch_bounds__(kThreads) reduce_packs(const __grid_constant__ WholeRows<Operator> rows,
                                                         const __grid_constant__ PackedRows packed, Operator op) {
  using Vector = Vector<typename Operator::Element>;
  const int lane = threadIdx.x % kWarp;
  const int first_item = lane * Vector::kItems;  // in a pack
  const int row_in_pack = static_cast<int>(packed.length.quotient(first_item));
  const int place = first_item - row_in_pack * rows.length;
  const int64_t first_row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp * (kPacks * packed.rows);
  const int left = static_cast<int>(minimum<int64_t>(rows.rows - first_row, kPacks * packed.rows));
  const auto items = rows.x + first_row * rows.length;
  const auto exists = [&](int i) { return row_in_pack < packed.rows && i * packed.rows + row_in_pack < left; };
  Vector vectors[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (exists(i)) vectors[i] = Vector::load(items, i * packed.rows * rows.length + first_item);
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t row = first_row + i * packed.rows + row_in_pack;
    auto state = fold_by_part(op, [&]<typename Part>() {
      Part part(op, row * rows.length);
      part.take(vectors[i].items, place);
      return part.state();
    });
    for (int distance = 1; distance * Vector::kItems < rows.length; distance *= 2) {
      const auto above = shuffle_down(state, distance);
      if (place + distance * Vector::kItems < rows.length) state = op.combine(state, above);
    }
    if (place == 0 && exists(i)) rows.result.store(row, op.finish(state, row * rows.length));
  }
}

}  // namespace mgpu::cuda::reducing
