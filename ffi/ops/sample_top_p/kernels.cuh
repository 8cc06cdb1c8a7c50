// The kernels of sample_top_p. A row's tokens are ordered by descending logit, and tokens with equal logits by
// position. A token's weight is exp((logit - largest logit) / temperature). The last kept token is the one at which the
// sum of weights reaches the asked mass of the total; if a share is given, tokens of smaller weight than the share are
// not kept either. The drawn token is the first one at which the sum of weights exceeds a random fraction of the kept
// weights' sum. The kernels:
// - find_best finds the largest logit and the smallest one above -inf.
// - add_up_bins adds up the weights in bins of logits.
//   These sums show in which bins the last kept token and the drawn token are.
// - list_tokens lists the tokens in these bins.
// - draw_tokens has a block per row.
// It searches the listed tokens or, if that fails, the whole row.
//
// A weight within a bin is an integer times the weight at the bin's middle,
// so sums within bins are the same in any order.
#pragma once

#include "algorithm/floats.h"
#include "cuda/block/partition.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/block/vectors.cuh"
#include "ops/sample_top_p/plan.h"

namespace mgpu::cuda::sampling {

constexpr int kThreads = kSampleThreads;
constexpr int kWarps = kThreads / kWarp;

struct Task {
  SampleTopPOperands operands;
  SampleTopPOperands::Scratch scratch;
};

struct FromFloat {
  using Word = uint32_t;
  __device__ __forceinline__ static float wide(Word bits) { return __uint_as_float(bits); }
};
struct FromHalf {
  using Word = uint16_t;
  __device__ __forceinline__ static float wide(Word bits) { return half_to_float(bits); }
};
struct FromBfloat {
  using Word = uint16_t;
  __device__ __forceinline__ static float wide(Word bits) { return __uint_as_float(uint32_t{bits} << 16); }
};

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }
constexpr float kRounding = 1 << 23;
using Sum = unsigned long long;

// A NaN counts as -inf, and -0 as 0.
template <typename From>
__device__ __forceinline__ float logit_of(typename From::Word bits) {
  const float x = From::wide(bits) + 0.0f;
  return x == x ? x : -infinity();
}
// An unsigned number in the order of the logits. float_of is the inverse.
__device__ __forceinline__ uint32_t code_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float float_of(uint32_t code) {
  return __uint_as_float(code ^ (static_cast<uint32_t>(static_cast<int32_t>(~code) >> 31) | 0x80000000u));
}

// Bins of equal width divide the exponents of a row's weights, from that of the largest logit down.
struct Weights {
  float best;     // the largest logit, or the largest finite number if that is infinite
  float inverse;  // 1 / temperature
  float scale;    // bins per unit of exponents
  float bins_per_logit;
  float step;               // 1 / scale
  float linear, quadratic;  // coefficients of a quotient's series
  float one;                // the weight of the largest logit as an integer, a power of two
  static constexpr float kLargest = 3.4028234663852886e38f;
  static constexpr float kUnit = 1 << kSampleBinBits;

  __device__ Weights(const SampleRow& row, float temperature, int64_t length) {
    best = float_of(static_cast<uint32_t>(row.best >> 32));
    // An infinite logit counts as the largest finite number. Then smaller numbers have the weight 0.
    inverse = best > kLargest ? 1 : fminf(1 / temperature, kLargest);
    best = fminf(best, kLargest);
    // Exponents below -32 have no bins.
    const float range = fminf(fmaxf((best - float_of(~row.least)) * inverse, 1.0f / 64), 32.0f);
    scale = (kSampleBins - 2) / range;
    bins_per_logit = fminf(inverse * scale, kLargest);
    step = 1 / scale;
    linear = step * kUnit;
    quadratic = 0.5f * step * linear;
    one = __uint_as_float(static_cast<uint32_t>(127 + 62 - maximum(ceil_log2(length), 17)) << 23);
  }
  // The place of a logit among the bins; place i is the middle of bin i. For a NaN logit and for -inf, it is NaN or
  // past all bins.
  __device__ __forceinline__ float place(float x) const { return (best + max_or_nan(-x, -kLargest)) * bins_per_logit; }
  // The nearest bin, or at least kSampleBins for a weight that counts as 0. An addition of 2^23 rounds the
  // place.
  __device__ __forceinline__ static unsigned bin(float place) {
    return __float_as_uint(place + kRounding) - __float_as_uint(kRounding);
  }
  // The weight divided by that at its bin's middle, as an integer with kSampleBinBits fractional bits, by a polynomial
  // of degree 2.
  __device__ __forceinline__ unsigned quotient(float place) const {
    const float distance = ((place + kRounding) - kRounding) - place;
    const float power = fmaf(fmaf(distance, quadratic, linear), distance, kUnit + kRounding);
    return __float_as_uint(power) - __float_as_uint(kRounding);
  }
  __device__ __forceinline__ float middle(unsigned bin) const { return expf(-static_cast<float>(bin) * step); }
  __device__ __forceinline__ Sum weight(float x) const {
    const float at = place(x);
    const unsigned own = bin(at);
    if (own >= kSampleBins) return 0;
    return __float2ull_rz(static_cast<float>(quotient(at)) * (middle(own) * (one / kUnit)));
  }
  __device__ __forceinline__ bool reaches(float x, float share) const {
    return x >= best || expf((x - best) * inverse) >= share;
  }
};

// Calls take(bits, position) for the logits of a part of a row, which the threads of a block share.
template <typename From, typename Take>
__device__ __forceinline__ void for_each_logit(const Task& task, int64_t row, int64_t part, Take take) {
  using Word = typename From::Word;
  using Vector = Vector<Word>;
  constexpr int kVectors = 16 / Vector::kItems;
  constexpr int kTile = kThreads * kVectors * Vector::kItems;
  const int64_t begin = part * kSamplePart;
  const int count = static_cast<int>(minimum<int64_t>(kSamplePart, task.operands.length - begin));
  const Word* const items = static_cast<const Word*>(task.operands.logits) + row * task.operands.length + begin;
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(items) % sizeof(Vector) / sizeof(Word));
#pragma unroll 1
  for (int tile = -lead; tile < count; tile += kTile) {
    const auto place = [&](int v) { return tile + (v * kThreads + static_cast<int>(threadIdx.x)) * Vector::kItems; };
    if (tile >= 0 && tile + kTile <= count) {
      Vector vectors[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) vectors[v] = Vector::load(items, place(v));
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < Vector::kItems; ++i) take(vectors[v].items[i], begin + place(v) + i);
      }
    } else {
#pragma unroll 1
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll 1
        for (int i = 0; i < Vector::kItems; ++i) {
          const int at = place(v) + i;
          if (at >= 0 && at < count) take(items[at], begin + at);
        }
      }
    }
  }
}

// Whether the largest logit decides alone: at temperature 0 its token is drawn, and if it is -inf, none is.
__device__ __forceinline__ bool is_drawn_at_once(const SampleRow& row, float temperature) {
  return temperature == 0 || static_cast<uint32_t>(row.best >> 32) == code_of(-infinity());
}

template <typename From>
__global__ void __launch_bounds__(kThreads) find_best(const __grid_constant__ Task task) {
  __shared__ unsigned long long bests[kWarps];
  __shared__ unsigned leasts[kWarps];
  const int64_t row = blockIdx.x / task.operands.parts(), part = blockIdx.x - row * task.operands.parts();
  float best = -infinity(), least = infinity();
  uint32_t at = ~0u;
  for_each_logit<From>(task, row, part, [&](auto bits, int64_t position) {
    const float x = logit_of<From>(bits);
    if (x > best || at == ~0u) {  // positions ascend, so the first of equal logits is kept
      best = x;
      at = static_cast<uint32_t>(position);
    }
    least = x > -infinity() ? fminf(least, x) : least;
  });
  unsigned long long first = at == ~0u ? 0 : static_cast<unsigned long long>(code_of(best)) << 32 | (~at);
  unsigned smallest = ~code_of(least);
  const auto largest = [](auto a, auto b) { return maximum(a, b); };
  first = fold_warp(first, largest);
  smallest = fold_warp(smallest, largest);
  first = scan_warps<kWarps>(bests, first, 0ull, largest).all;
  smallest = scan_warps<kWarps>(leasts, smallest, 0u, largest).all;
  if (threadIdx.x == 0) {
    atomicMax(&task.scratch.state[row].best, first);
    atomicMax(&task.scratch.state[row].least, smallest);
  }
}

// The first or, if `last`, the last code of the logits in
// some bins. As a logit grows, its bin does not rise.
__device__ inline uint32_t code_in(const SampleRow& row, const Weights& weights, SampleBins bins, bool last) {
  const int64_t least = code_of(-infinity()), most = static_cast<uint32_t>(row.best >> 32);
  if (bins.first > bins.last) return static_cast<uint32_t>(last ? least : most);
  const int64_t bin = last ? bins.first - 1 : bins.last;
  const auto is_later = [&](int64_t code) {
    return int64_t{Weights::bin(weights.place(float_of(static_cast<uint32_t>(code))))} > bin;
  };
  return static_cast<uint32_t>(warp_partition_point(least, most + 1, is_later) - last);
}

// Finds the bins of the last kept token and of the drawn one, from the sums of all bins. All threads of a block call
// it. `ends` has room for the sum up to each bin.
__device__ inline void find_bins(const Task& task, int64_t row, const Weights& weights, double* ends) {
  constexpr int kEach = kSampleBins / kThreads;
  __shared__ double warp_sums[kWarps];
  __shared__ SampleBins found[2];  // the bins of the cut, and of the drawn token
  const float u = task.operands.u[row], mass = task.operands.mass[row], share = task.operands.share[row];
  const unsigned long long* const bins = task.scratch.bins + row * kSampleBins + threadIdx.x * kEach;
  double own[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    own[i] = static_cast<double>(__ldcg(bins + i)) * static_cast<double>(weights.middle(threadIdx.x * kEach + i));
    sum += own[i];
  }
  const Prefix<double> sums = sum_block<kWarps>(warp_sums, sum);
  double end = sums.before;
#pragma unroll
  for (int i = 0; i < kEach; ++i) ends[threadIdx.x * kEach + i] = end += own[i];
  // The first bin up to which the sum reaches `number` or, with `exceeds`, exceeds it; or else the last bin.
  const auto find = [&](double number, bool exceeds) {
    int low = 0, high = kSampleBins - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (exceeds ? ends[middle] > number : ends[middle] >= number)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  __syncthreads();
  SampleRow& state = task.scratch.state[row];
  if (threadIdx.x == 0) {
    SampleBins cut{kSampleBins, kSampleBins - 1};  // no bin: all tokens are kept
    bool has_mass = mass < 1;
    if (has_mass) cut.first = cut.last = find(ends[kSampleBins - 1] * mass, false);
    if (share > 0) {
      // A share near the edge of a bin may have its tokens in the bin before or after.
      const float place = minimum(-logf(minimum(share, 1.0f)) * weights.scale, 2.0f * kSampleBins);
      const auto bin = static_cast<int>(Weights::bin(place));
      const SampleBins least{minimum(maximum(bin - 1, 0), kSampleBins - 1), minimum(bin + 1, kSampleBins - 1)};
      // Of the cuts by mass and by share, the earlier decides. If the bins of both overlap, they are listed together.
      if (least.last < cut.first) {
        cut = least;
        has_mass = false;
      } else if (least.first <= cut.last) {
        cut = {minimum(cut.first, least.first), maximum(cut.last, least.last)};
      }
    }
    const double unit = static_cast<double>(weights.one) / Weights::kUnit;
    const auto before = [&](int bin) { return bin == 0 ? 0 : ends[minimum(bin, kSampleBins) - 1]; };
    const SampleBins draw{find(u * before(cut.first), true),
                          minimum(find(u * before(cut.last + 1), true), maximum(cut.last, 0))};
    state.has_mass = has_mass;
    state.total = static_cast<Sum>(ends[kSampleBins - 1] * unit);
    state.before_cut = static_cast<Sum>(before(cut.first) * unit);
    state.before_draw = static_cast<Sum>(before(draw.first) * unit);
    found[0] = cut;
    found[1] = draw;
  }
  __syncthreads();
  if (threadIdx.x < 4 * kWarp) {
    const bool is_draw = threadIdx.x >= 2 * kWarp, last = threadIdx.x / kWarp % 2;
    const uint32_t code = code_in(state, weights, found[is_draw], last);
    SampleRange& range = is_draw ? state.draw : state.cut;
    if (threadIdx.x % kWarp == 0) (last ? range.last : range.first) = code;
  }
}

// The last block of a row to finish finds the bins that list_tokens needs.
template <typename From>
__global__ void __launch_bounds__(kThreads) add_up_bins(const __grid_constant__ Task task) {
  constexpr int kCopies = 4;
  constexpr int kPitch = kSampleBins + kWarp / kCopies;
  __shared__ alignas(8) unsigned sums[kCopies * kPitch];
  __shared__ bool is_last;
  const int64_t row = blockIdx.x / task.operands.parts(), part = blockIdx.x - row * task.operands.parts();
  SampleRow& state = task.scratch.state[row];
  const float temperature = task.operands.temperature[row];
  if (is_drawn_at_once(state, temperature)) return;
  const Weights weights(state, temperature, task.operands.length);
  for (int i = threadIdx.x; i < kCopies * kPitch; i += kThreads) sums[i] = 0;
  __syncthreads();
  unsigned* const own = sums + threadIdx.x % kCopies * kPitch;
  for_each_logit<From>(task, row, part, [&](auto bits, int64_t) {
    const float place = weights.place(From::wide(bits));
    const unsigned bin = Weights::bin(place);
    if (bin < kSampleBins) atomicAdd(&own[bin], weights.quotient(place));
  });
  __syncthreads();
  for (int i = threadIdx.x; i < kSampleBins; i += kThreads) {
    unsigned sum = 0;
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) sum += sums[copy * kPitch + i];
    if (sum > 0) atomicAdd(task.scratch.bins + row * kSampleBins + i, Sum{sum});
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&state.counted, 1u) == static_cast<unsigned>(task.operands.parts()) - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  find_bins(task, row, weights, reinterpret_cast<double*>(sums));
}

template <typename From>
__global__ void __launch_bounds__(kThreads) list_tokens(const __grid_constant__ Task task) {
  __shared__ SampleCandidate listed[kSampleListed];
  __shared__ unsigned count, to;
  const int64_t row = blockIdx.x / task.operands.parts(), part = blockIdx.x - row * task.operands.parts();
  SampleRow& state = task.scratch.state[row];
  if (is_drawn_at_once(state, task.operands.temperature[row])) return;
  // Floats are compared, not codes. A NaN is in no range.
  const float cut_low = float_of(state.cut.first), cut_high = float_of(state.cut.last);
  const float draw_low = float_of(state.draw.first), draw_high = float_of(state.draw.last);
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for_each_logit<From>(task, row, part, [&](auto bits, int64_t position) {
    const float x = From::wide(bits);
    if ((x >= cut_low && x <= cut_high) || (x >= draw_low && x <= draw_high)) {
      const unsigned to = atomicAdd(&count, 1u);
      if (to < kSampleListed) listed[to] = {code_of(logit_of<From>(bits)), static_cast<uint32_t>(position)};
    }
  });
  __syncthreads();
  const unsigned kept = minimum(count, static_cast<unsigned>(kSampleListed));
  if (threadIdx.x == 0) {
    to = atomicAdd(&state.listed, kept);
    if (count > kSampleListed) atomicOr(&state.is_full, 1u);
  }
  __syncthreads();
  SampleCandidate* const candidates = task.scratch.candidates + row * task.operands.room() + to;
  for (unsigned i = threadIdx.x; i < kept; i += kThreads) candidates[i] = listed[i];
}

constexpr int kDrawWarps = kSampleDrawThreads / kWarp;

// Combines one value per thread over a block. Two shared buffers alternate, so each call needs only one barrier.
struct BlockFold {
  Sum (&shared)[2][kDrawWarps];
  int turn = 0;
  template <typename Combine>
  __device__ __forceinline__ Sum operator()(Sum own, Combine combine) {
    own = fold_warp(own, combine);
    turn ^= 1;
    if (threadIdx.x % kWarp == 0) shared[turn][threadIdx.x / kWarp] = own;
    __syncthreads();
    Sum all = shared[turn][0];
#pragma unroll
    for (int warp = 1; warp < kDrawWarps; ++warp) all = combine(all, shared[turn][warp]);
    return all;
  }
  __device__ __forceinline__ Sum sum(Sum own) {
    return (*this)(own, [](Sum a, Sum b) { return a + b; });
  }
  __device__ __forceinline__ Sum largest(Sum own) {
    return (*this)(own, [](Sum a, Sum b) { return maximum(a, b); });
  }
};

struct Pairs {
  SampleCandidate tokens[kSampleDrawThreads];
  Sum weights[kSampleDrawThreads];
  unsigned count;
  Sum end;
  uint32_t position;
};

struct Place {
  bool is_found;
  uint32_t position;
  Sum end;  // the sum of the weights up to and including the token's
};

// The position of token number `number`, counted from 0, among the tokens whose logit has the code `found`.
template <typename Each>
__device__ uint32_t find_position(BlockFold& fold, const Each& each, uint32_t found, Sum number, int64_t length) {
  uint32_t low = 0, high = static_cast<uint32_t>(length - 1);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    unsigned count = 0;
    each([&](uint32_t code, uint32_t position) { count += code == found && position <= middle; });
    if (fold.sum(count) > number) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Finds the token whose weight covers `target`: the sum of the weights before it is at most `target`, and the sum with
// its own weight is more. `each(visit)` calls visit(code, position) for a thread's share of some tokens. Only tokens
// with a code in `range` are searched, before which the weights add up to `before`. If rounding puts `target` outside
// of these weights, finds the first or the last of the tokens; finds none if they have no weight.
template <typename Each>
__device__ Place find_place(BlockFold& fold, Pairs& pairs, const Weights& weights, const Each& each, SampleRange range,
                            Sum before, Sum target, int64_t length) {
  const auto weight_of = [&](uint32_t code) { return weights.weight(float_of(code)); };
  Sum own = 0, number = 0;
  uint32_t most = 0, least = ~0u;
  each([&](uint32_t code, uint32_t) {
    const Sum weight = code >= range.first && code <= range.last ? weight_of(code) : 0;
    if (weight == 0) return;
    own += weight;
    ++number;
    most = maximum(most, code);
    least = minimum(least, code);
  });
  const Sum all = fold.sum(own);
  number = fold.sum(number);
  auto high = static_cast<uint32_t>(fold.largest(most));
  auto low = ~static_cast<uint32_t>(fold.largest(static_cast<uint32_t>(~least)));
  if (all == 0) return {};
  target = minimum(target - minimum(target, before), all - 1);
  Sum above = 0;  // the sum of the weights of codes above `high`
  while (low < high && number > kSampleDrawThreads) {
    const uint32_t middle = low + (high - low) / 2;
    Sum upper = 0, upper_number = 0;
    each([&](uint32_t code, uint32_t) {
      if (code <= middle || code > high) return;
      upper += weight_of(code);
      ++upper_number;
    });
    upper = fold.sum(upper);
    upper_number = fold.sum(upper_number);
    if (above + upper > target) {
      low = middle + 1;
      number = upper_number;
    } else {
      above += upper;
      high = middle;
      number -= upper_number;
    }
  }
  if (number > kSampleDrawThreads) {  // all have the code `high`, and so one weight
    const Sum one = weight_of(high), earlier = (target - above) / one;
    return {true, find_position(fold, each, high, earlier, length), before + above + (earlier + 1) * one};
  }
  if (threadIdx.x == 0) pairs.count = 0;
  __syncthreads();
  each([&](uint32_t code, uint32_t position) {
    if (code < low || code > high) return;
    const unsigned to = atomicAdd(&pairs.count, 1u);
    if (to >= kSampleDrawThreads) return;  // never: weights grow with codes, so `number` counts these tokens
    pairs.tokens[to] = {code, position};
    pairs.weights[to] = weight_of(code);
  });
  __syncthreads();
  if (threadIdx.x < number) {
    const SampleCandidate token = pairs.tokens[threadIdx.x];
    Sum up_to = above + pairs.weights[threadIdx.x];
#pragma unroll 4
    for (int i = 0; i < static_cast<int>(number); ++i) {
      const SampleCandidate other = pairs.tokens[i];
      const bool is_before = other.code > token.code || (other.code == token.code && other.position < token.position);
      up_to += is_before ? pairs.weights[i] : 0;
    }
    if (up_to > target && up_to - pairs.weights[threadIdx.x] <= target) {
      pairs.position = token.position;
      pairs.end = before + up_to;
    }
  }
  __syncthreads();
  return {true, pairs.position, pairs.end};
}

// One block per row.
template <typename From>
__global__ void __launch_bounds__(kSampleDrawThreads) draw_tokens(const __grid_constant__ Task task) {
  using Word = typename From::Word;
  __shared__ Sum shared[2][kDrawWarps];
  __shared__ Pairs pairs;
  BlockFold fold{shared};
  const int64_t row = blockIdx.x;
  const int64_t length = task.operands.length;
  const SampleRow& state = task.scratch.state[row];
  const float u = task.operands.u[row], temperature = task.operands.temperature[row], mass = task.operands.mass[row];
  const float share = minimum(task.operands.share[row], 1.0f);
  if (is_drawn_at_once(state, temperature)) {
    const bool has_none = static_cast<uint32_t>(state.best >> 32) == code_of(-infinity());
    const auto best = static_cast<int64_t>(~static_cast<uint32_t>(state.best));
    if (threadIdx.x == 0) task.operands.token.set(row, has_none ? -1 : best);
    return;
  }
  const Weights weights(state, temperature, length);
  const Word* const logits = static_cast<const Word*>(task.operands.logits) + row * length;
  const SampleCandidate* const candidates = task.scratch.candidates + row * task.operands.room();
  const int listed = static_cast<int>(state.listed);
  const auto each_listed = [=](auto visit) {
#pragma unroll 4
    for (int i = threadIdx.x; i < listed; i += kSampleDrawThreads) visit(candidates[i].code, candidates[i].position);
  };
  const auto each_of_row = [=](auto visit) {
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < length; i += kSampleDrawThreads) {
      visit(code_of(logit_of<From>(logits[i])), static_cast<uint32_t>(i));
    }
  };
  const bool is_listed = state.is_full == 0;
  const SampleRange whole{0, ~0u};
  const auto find_listed = [&](SampleRange range, Sum before, Sum target) {
    return find_place(fold, pairs, weights, each_listed, range, before, target, length);
  };
  const auto find_in_row = [&](Sum target) {
    return find_place(fold, pairs, weights, each_of_row, whole, 0, target, length);
  };

  Sum kept = state.total;
  if (mass < 1 && (state.has_mass || !is_listed)) {
    const double reached = ceil(static_cast<double>(mass) * static_cast<double>(state.total));
    const Sum target = reached < 1 ? 0 : static_cast<Sum>(reached) - 1;
    Place last{};
    if (is_listed) last = find_listed(state.cut, state.before_cut, target);
    if (!last.is_found) last = find_in_row(target);
    kept = last.end;
  }
  if (share > 0) {
    const SampleRange cut = is_listed ? state.cut : whole;
    Sum own = 0;
    const auto add = [&](uint32_t code, uint32_t) {
      const float x = float_of(code);
      own += code >= cut.first && code <= cut.last && weights.reaches(x, share) ? weights.weight(x) : 0;
    };
    is_listed ? each_listed(add) : each_of_row(add);
    kept = minimum(kept, fold.sum(own) + (is_listed ? state.before_cut : 0));
  }
  const Sum target = minimum(static_cast<Sum>(static_cast<double>(u) * static_cast<double>(kept)), kept - 1);
  Place drawn{};
  if (is_listed) drawn = find_listed(state.draw, state.before_draw, target);
  if (!drawn.is_found) drawn = find_in_row(target);
  if (threadIdx.x == 0) task.operands.token.set(row, drawn.position);
}

}  // namespace mgpu::cuda::sampling
