#pragma once

#include "algorithm/operators.h"
#include "cuda/block/shuffle.cuh"

namespace mgpu::cuda {

// Sums over parts of a sequence. A sum, `Value`, is a state; in a segmented sequence, it also says whether the part has
// a restart.
template <typename Operator, bool kSegmented>
struct Sums {
  using State = typename Operator::State;
  using Value = std::conditional_t<kSegmented, SinceRestart<State>, State>;

  const Operator& op;

  __device__ __forceinline__ static Value make(State state, bool restarted) {
    if constexpr (kSegmented) {
      return {state, restarted};
    } else {
      return state;
    }
  }
  __device__ __forceinline__ static State state(const Value& value) {
    if constexpr (kSegmented) {
      return value.state;
    } else {
      return value;
    }
  }
  __device__ __forceinline__ static bool restarted(const Value& value) {
    if constexpr (kSegmented) {
      return value.restarted != 0;
    } else {
      return false;
    }
  }
  __device__ __forceinline__ Value identity() const { return make(op.identity(), false); }
  __device__ __forceinline__ Value operator()(const Value& a, const Value& b) const {
    if constexpr (kSegmented) {
      return combine_since(op, a, b);
    } else {
      return op.combine(a, b);
    }
  }
};

template <typename Value>
struct Prefix {
  Value before;
  Value all;
};

// The sum of the lanes before this one, and that of the whole warp. `restarts` is a bitmap of the lanes whose state is
// the sum since their last restart.
template <bool kSegmented, int kUnroll = kWarp, typename Operator>
__device__ __forceinline__ Prefix<typename Sums<Operator, kSegmented>::Value> scan_warp(const Operator& op,
                                                                                        typename Operator::State state,
                                                                                        unsigned restarts) {
  using Sums = Sums<Operator, kSegmented>;
  const int lane = threadIdx.x % kWarp;
  const unsigned earlier = restarts & ((1u << lane) - 1);
  const unsigned here = restarts & ((2u << lane) - 1);
  const int first = kSegmented && here ? 31 - __clz(here) : 0;
#pragma unroll kUnroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const typename Operator::State below = shuffle_up(state, distance);
    if (lane - distance >= first) state = op.combine(below, state);
  }
  const typename Operator::State below = shuffle_up(state, 1);
  return {Sums::make(lane == 0 ? op.identity() : below, earlier != 0),
          Sums::make(shuffle(state, kWarp - 1), restarts != 0)};
}

// The sum of the warps before this one, and that of the whole block. Each warp's first lane gives `warp_sum`. Contains
// a barrier; `shared` has room for one value per warp.
template <int kWarps, typename Value, typename Combine>
__device__ __forceinline__ Prefix<Value> scan_warps(Value* shared, const Value& warp_sum, const Value& identity,
                                                    Combine combine) {
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) shared[warp] = warp_sum;
  __syncthreads();
  Prefix<Value> prefix{identity, identity};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) prefix.before = prefix.all;
    prefix.all = combine(prefix.all, shared[w]);
  }
  return prefix;
}

template <typename T>
__device__ __forceinline__ T sum_up_to(T x) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T below = shuffle_up(x, distance);
    if (static_cast<int>(threadIdx.x % kWarp) >= distance) x += below;
  }
  return x;
}

// Contains a barrier; `shared` has room for one value per warp.
template <int kWarps, typename T>
__device__ __forceinline__ Prefix<T> sum_block(T* shared, T x) {
  const T up_to = sum_up_to(x);
  const auto in_block =
      scan_warps<kWarps>(shared, shuffle(up_to, kWarp - 1), T{0}, [](const T& a, const T& b) { return a + b; });
  return {in_block.before + (up_to - x), in_block.all};
}

template <int kWarps, typename T, typename Combine>
__device__ Prefix<T> scan_block(T* shared, T x, T identity, Combine combine) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T below = shuffle_up(x, distance);
    if (lane >= distance) x = combine(below, x);
  }
  const T before = shuffle_up(x, 1);
  const auto in_block = scan_warps<kWarps>(shared, shuffle(x, kWarp - 1), identity, combine);
  return {lane == 0 ? in_block.before : combine(in_block.before, before), in_block.all};
}

}  // namespace mgpu::cuda
