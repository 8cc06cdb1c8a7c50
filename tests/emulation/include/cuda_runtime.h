// The part of CUDA that the kernels and their launches use, in plain C++: see emulator.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "emulator.h"

// ---- Keywords of the language. Shared memory is static, as blocks run one after the other.

#define __device__
#define __host__
#define __global__ static  // ASan guards only static variables of functions that other files cannot call
#define __constant__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) int2 {
  int x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};

// Each use reads the coordinate's current value.
template <auto read>
struct EmulatedNumber {
  operator unsigned() const { return static_cast<unsigned>(read()); }
};
struct EmulatedThread {
  EmulatedNumber<emulator::thread> x;
};
struct EmulatedSize {
  EmulatedNumber<emulator::threads> x;
};
struct EmulatedBlock {
  EmulatedNumber<[] { return emulator::block().x; }> x;
  EmulatedNumber<[] { return emulator::block().y; }> y;
  EmulatedNumber<[] { return emulator::block().z; }> z;
};
struct EmulatedGrid {
  EmulatedNumber<[] { return emulator::grid().x; }> x;
  EmulatedNumber<[] { return emulator::grid().y; }> y;
  EmulatedNumber<[] { return emulator::grid().z; }> z;
};
inline constexpr EmulatedThread threadIdx{};
inline constexpr EmulatedBlock blockIdx{};
inline constexpr EmulatedGrid gridDim{};
inline constexpr EmulatedSize blockDim{};

// ---- Barriers, votes and shuffles

inline void __syncthreads() { emulator::wait_for_block(); }
inline int __syncthreads_count(bool vote) { return emulator::count_block(vote); }
inline bool __syncthreads_or(bool vote) { return emulator::count_block(vote) > 0; }
inline bool __syncthreads_and(bool vote) { return emulator::count_block(!vote) == 0; }
inline void __syncwarp(unsigned mask = ~0u) { emulator::wait_for_lanes(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace emulator {
inline int lane() { return thread() % kLanes; }
inline int group_begin(int width) { return lane() / width * width; }
}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = emulator::kLanes) {
  const int in_group = static_cast<int>(static_cast<unsigned>(lane) % static_cast<unsigned>(width));
  return emulator::value_of_lane(mask, value, emulator::group_begin(width) + in_group);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance, int width = emulator::kLanes) {
  const int from = emulator::lane() - distance;
  return emulator::value_of_lane(mask, value, from < emulator::group_begin(width) ? emulator::lane() : from);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int distance, int width = emulator::kLanes) {
  const int from = emulator::lane() + distance;
  return emulator::value_of_lane(mask, value, from >= emulator::group_begin(width) + width ? emulator::lane() : from);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emulator::value_of_lane(mask, value, emulator::lane() ^ bits);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  return emulator::lanes_where(mask, vote, [](uint64_t vote) { return vote != 0; });
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, !vote) == 0; }
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  const uint64_t own = emulator::bits_of(value);
  return emulator::lanes_where(mask, own, [=](uint64_t other) { return other == own; });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
  return emulator::reduce_lanes(mask, value, [](T a, T b) { return std::min(a, b); });
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  return emulator::reduce_lanes(mask, value, [](T a, T b) { return std::max(a, b); });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return emulator::reduce_lanes(mask, value, [](unsigned a, unsigned b) { return a | b; });
}

// ---- Memory

template <typename T>
T __ldcg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
inline uint32_t __cvta_generic_to_shared(const void* shared) { return emulator::address_of(shared); }
inline void* __cvta_shared_to_generic(size_t address) { return emulator::at_address(static_cast<uint32_t>(address)); }

template <typename T, typename Change>
T emulated_atomic(T* at, Change change) {
  const T before = *at;
  *at = static_cast<T>(change(before));
  return before;
}
template <typename T, typename Value>
T atomicAdd(T* at, Value value) {
  return emulated_atomic(at, [=](T before) { return before + static_cast<T>(value); });
}
template <typename T, typename Value>
T atomicMin(T* at, Value value) {
  return emulated_atomic(at, [=](T before) { return std::min(before, static_cast<T>(value)); });
}
template <typename T, typename Value>
T atomicMax(T* at, Value value) {
  return emulated_atomic(at, [=](T before) { return std::max(before, static_cast<T>(value)); });
}
template <typename T, typename Value>
T atomicOr(T* at, Value value) {
  return emulated_atomic(at, [=](T before) { return before | static_cast<T>(value); });
}
template <typename T, typename Value>
T atomicAnd(T* at, Value value) {
  return emulated_atomic(at, [=](T before) { return before & static_cast<T>(value); });
}
template <typename T, typename Value>
T atomicXor(T* at, Value value) {
  return emulated_atomic(at, [=](T before) { return before ^ static_cast<T>(value); });
}
template <typename T, typename Expected, typename Value>
T atomicCAS(T* at, Expected expected, Value value) {
  return emulated_atomic(at,
                         [=](T before) { return before == static_cast<T>(expected) ? static_cast<T>(value) : before; });
}

// ---- Arithmetic

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selection) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned selected = selection >> 4 * i & 15;
    const unsigned byte = static_cast<unsigned>(bytes >> 8 * (selected & 7)) & 255;
    result |= (selected & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
template <typename Combine>
unsigned emulated_halves(unsigned a, unsigned b, Combine combine) {
  const auto half = [](unsigned x, int i) { return static_cast<int16_t>(x >> 16 * i); };
  const auto bits = [](int16_t x) { return unsigned{static_cast<uint16_t>(x)}; };
  return bits(combine(half(a, 0), half(b, 0))) | bits(combine(half(a, 1), half(b, 1))) << 16;
}
inline unsigned __vmins2(unsigned a, unsigned b) {
  return emulated_halves(a, b, [](int16_t x, int16_t y) { return std::min(x, y); });
}
inline unsigned __viaddmin_s16x2(unsigned a, unsigned b, unsigned c) {
  return __vmins2(emulated_halves(a, b, [](int16_t x, int16_t y) { return static_cast<int16_t>(x + y); }), c);
}
inline float __uint_as_float(unsigned x) { return emulator::value_of<float>(emulator::bits_of(x)); }
inline unsigned __float_as_uint(float x) { return emulator::value_of<unsigned>(emulator::bits_of(x)); }
inline float __int_as_float(int x) { return emulator::value_of<float>(emulator::bits_of(x)); }
inline int __float_as_int(float x) { return emulator::value_of<int>(emulator::bits_of(x)); }
inline double __longlong_as_double(long long x) { return emulator::value_of<double>(emulator::bits_of(x)); }
inline unsigned long long __float2ull_rz(float x) {
  return x >= 0x1p64f ? ~0ull : x > 0 ? static_cast<unsigned long long>(x) : 0;
}
// A device returns the same NaN, whichever NaNs are among the operands.
inline float __fmaf_rn(float a, float b, float c) {
  const float sum = std::fma(a, b, c);
  return sum != sum ? __uint_as_float(0x7fffffffu) : sum;
}
inline float __fdividef(float a, float b) { return a / b; }

// ---- Calls of the runtime: a device of compute capability 8.0 with few multiprocessors, so that grids are small

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
enum cudaMemcpyKind { cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrL2CacheSize,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaFuncAttributes {
  size_t sharedSizeBytes = 0;
  int ptxVersion = 80;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  int numAttrs = 0;
};

inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  if (bytes > 0) std::memset(to, byte, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (bytes > 0) std::memmove(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulator"; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
  }
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel) {
  *attributes = {};
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int threads, size_t) {
  *blocks = std::max(1, 1024 / threads);
  return cudaSuccess;
}
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* launch, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> given(std::forward<Arguments>(arguments)...);
  emulator::run([&] { std::apply(kernel, given); }, launch->gridDim, static_cast<int>(launch->blockDim.x),
                launch->dynamicSmemBytes, launch->stream, launch->attrs != nullptr);
  return cudaSuccess;
}
