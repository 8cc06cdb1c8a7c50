// All inline PTX, a few instructions per function.
#pragma once

#include "algorithm/common.h"

namespace mgpu::cuda {

// ---- Values

// Hides from the compiler how the arguments were computed, so that it cannot recompute or postpone them.
__device__ __forceinline__ void keep(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void keep(unsigned& x, unsigned& y) { asm volatile("" : "+r"(x), "+r"(y)); }
__device__ __forceinline__ void keep(unsigned& x, unsigned& y, unsigned& z) {
  asm volatile("" : "+r"(x), "+r"(y), "+r"(z));
}
template <typename T>
__device__ __forceinline__ void keep(const T*& pointer) {
  asm("" : "+l"(pointer));
}

// Conversions of float16: to float32, exactly, and from float32, to the nearest, with ties to even.
__device__ __forceinline__ float half_to_float(uint16_t bits) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
  return wide;
}
__device__ __forceinline__ uint16_t float_to_half(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// 2 to the power of x, approximately. Results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approximately(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// 1 / x, approximately, if neither |x| nor |1 / x| is below 2^-126.
__device__ __forceinline__ float reciprocal_approximately(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

// ---- Launches. If its launch allows it, a kernel may start once all blocks of its predecessor in the stream have
// called start_next_kernel() or ended. All of its blocks must call wait_for_last_kernel(), after which they can read
// what the predecessor wrote. Compiled for less than sm_90, both do nothing.

__device__ inline void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_last_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Words in device memory that blocks exchange

__device__ __forceinline__ void store_relaxed(uint32_t* word, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// If a condition guards the load and is false, the variable keeps its value.
__device__ __forceinline__ void load_relaxed(uint32_t& value, const uint32_t* word) {
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
}
__device__ __forceinline__ void load_relaxed(uint64_t& value, const uint64_t* word) {
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
}

// ---- Warps

// The lanes whose `digit` has the same bit `bit` as this lane's. All lanes of the warp call it.
__device__ __forceinline__ unsigned lanes_of_same_bit(unsigned digit, int bit) {
  unsigned lanes;
  asm volatile(
      "{ .reg .pred set;\n"
      "and.b32 %0, %1, %2;\n"
      "setp.ne.u32 set, %0, 0;\n"
      "vote.ballot.sync.b32 %0, set, 0xffffffff;\n"
      "@!set not.b32 %0, %0; }"
      : "=&r"(lanes)
      : "r"(digit), "r"(1u << bit));
  return lanes;
}

// The result is NaN if a or b is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a != a ? a : b != b ? b : fmaxf(a, b);
#endif
}

// One instruction.
__device__ __forceinline__ unsigned and_of_three(unsigned a, unsigned b, unsigned c) {
  unsigned all;
  asm("lop3.b32 %0, %1, %2, %3, 0x80;" : "=r"(all) : "r"(a), "r"(b), "r"(c));
  return all;
}

// ---- Barriers of some of a block's warps

// Named barrier kId, which kThreads threads reach: some wait
// there (barrier_sync), others arrive (barrier_arrive).
template <int kId, int kThreads>
__device__ void barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
template <int kId, int kThreads>
__device__ void barrier_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// A named barrier whose number is known only at run time. Some of its `threads` threads only arrive, to announce what
// they wrote; the others wait.
__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Shared memory by its 32-bit addresses

template <typename Word>
__device__ uint32_t shared_address(const Word* key) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(key));
}

template <typename Word>
__device__ int position_of(uint32_t address, const Word* keys) {
  return static_cast<int>(address - shared_address(keys)) / static_cast<int>(sizeof(Word));
}

template <typename Word>
__device__ Word shared_load(uint32_t address) {
  if constexpr (sizeof(Word) == 4) {
    Word key;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(key) : "r"(address));
    return key;
  } else if constexpr (sizeof(Word) == 8) {
    Word key;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(key) : "r"(address));
    return key;
  } else if constexpr (sizeof(Word) == 16) {
    uint64_t low, high;
    asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "r"(address));
    return Word{high} << 64 | low;
  } else {
    return *static_cast<const Word*>(__cvta_shared_to_generic(address));
  }
}

// ---- Steps of searches and merges in
// shared memory, predicated by hand.

template <typename Word>
__device__ void load_probes(bool inside, uint32_t a, uint32_t b, Word& a_key, Word& b_key) {
  if constexpr (sizeof(Word) == 4) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p ld.shared.u32 %0, [%2]; @p ld.shared.u32 %1, [%3]; }"
                 : "+r"(a_key), "+r"(b_key)
                 : "r"(a), "r"(b), "r"(static_cast<int>(inside)));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p ld.shared.u64 %0, [%2]; @p ld.shared.u64 %1, [%3]; }"
                 : "+l"(a_key), "+l"(b_key)
                 : "r"(a), "r"(b), "r"(static_cast<int>(inside)));
  } else if (inside) {
    a_key = shared_load<Word>(a);
    b_key = shared_load<Word>(b);
  }
}

// Goes up in A and down in B, if `condition`.
__device__ inline void move_if(bool condition, int bytes, int items, uint32_t& a, uint32_t& b, int& left) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; @p add.u32 %0, %0, %4; @p sub.u32 %1, %1, %4; @p sub.s32 %2, %2, %5; }"
      : "+r"(a), "+r"(b), "+r"(left)
      : "r"(static_cast<int>(condition)), "r"(bytes), "r"(items));
}

template <int kBytes>
__device__ void move_either(bool in_b, uint32_t& a, uint32_t& b) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p add.u32 %1, %1, %3; @!p add.u32 %0, %0, %3; }"
               : "+r"(a), "+r"(b)
               : "r"(static_cast<int>(in_b)), "n"(kBytes));
}

// Advances B if `in_b`, else
// A, and loads the next head.
template <typename Word>
__device__ void advance(bool in_b, uint32_t& a, uint32_t& b, Word& a_key, Word& b_key) {
  if constexpr (sizeof(Word) == 4) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %4, 0; @p add.u32 %1, %1, 4; @!p add.u32 %0, %0, 4;"
        " @p ld.shared.u32 %3, [%1]; @!p ld.shared.u32 %2, [%0]; }"
        : "+r"(a), "+r"(b), "+r"(a_key), "+r"(b_key)
        : "r"(static_cast<int>(in_b)));
  } else if constexpr (sizeof(Word) == 8) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %4, 0; @p add.u32 %1, %1, 8; @!p add.u32 %0, %0, 8;"
        " @p ld.shared.u64 %3, [%1]; @!p ld.shared.u64 %2, [%0]; }"
        : "+r"(a), "+r"(b), "+l"(a_key), "+l"(b_key)
        : "r"(static_cast<int>(in_b)));
  } else if constexpr (sizeof(Word) == 16) {
    uint64_t a_low = static_cast<uint64_t>(a_key), a_high = static_cast<uint64_t>(a_key >> 64);
    uint64_t b_low = static_cast<uint64_t>(b_key), b_high = static_cast<uint64_t>(b_key >> 64);
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %6, 0; @p add.u32 %1, %1, 16; @!p add.u32 %0, %0, 16;"
        " @p ld.shared.v2.u64 {%4, %5}, [%1]; @!p ld.shared.v2.u64 {%2, %3}, [%0]; }"
        : "+r"(a), "+r"(b), "+l"(a_low), "+l"(a_high), "+l"(b_low), "+l"(b_high)
        : "r"(static_cast<int>(in_b)));
    a_key = Word{a_high} << 64 | a_low;
    b_key = Word{b_high} << 64 | b_low;
  } else {
    const uint32_t next = (in_b ? b : a) + sizeof(Word);
    const Word key = *static_cast<const Word*>(__cvta_shared_to_generic(next));
    (in_b ? b : a) = next;
    (in_b ? b_key : a_key) = key;
  }
}

// If `stores`, stores `value` at `to` and advances `to`; otherwise increments `value`.
__device__ __forceinline__ void put_or_count(unsigned stores, uint32_t& to, int32_t& value) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %2, 0;"
      " @p st.shared.s32 [%0], %1; @p add.u32 %0, %0, 4; @!p add.s32 %1, %1, 1; }"
      : "+r"(to), "+r"(value)
      : "r"(stores)
      : "memory");
}

// If `is_a`, stores for an item of A the number of B's items before it and the byte `match`, and increments a_before.
// If `is_b`, does the same with A and B swapped. Both may be set, or none.
__device__ __forceinline__ void put_match(unsigned is_a, uint32_t& a_to, uint32_t& a_match_to, int32_t& a_before,
                                          unsigned is_b, uint32_t& b_to, uint32_t& b_match_to, int32_t& b_before,
                                          unsigned match) {
  asm volatile(
      "{ .reg .pred a, b; setp.ne.u32 a, %6, 0; setp.ne.u32 b, %7, 0;"
      " @a st.shared.s32 [%0], %5; @a st.shared.u8 [%1], %8; @b st.shared.s32 [%2], %4; @b st.shared.u8 [%3], %8;"
      " @a add.u32 %0, %0, 4; @a add.u32 %1, %1, 1; @a add.s32 %4, %4, 1;"
      " @b add.u32 %2, %2, 4; @b add.u32 %3, %3, 1; @b add.s32 %5, %5, 1; }"
      : "+r"(a_to), "+r"(a_match_to), "+r"(b_to), "+r"(b_match_to), "+r"(a_before), "+r"(b_before)
      : "r"(is_a), "r"(is_b), "r"(match)
      : "memory");
}

// ---- Asynchronous copies from device to shared memory. Items of 4, 8 and 16 bytes
// are copied asynchronously on sm_80 and newer. Otherwise, items are copied at once.

template <typename T>
__device__ void copy_async(T* shared, const T* global) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(global), "n"(sizeof(T))
        : "memory");
    return;
  } else if constexpr (sizeof(T) == 16) {  // bypasses the L1 cache
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(global)
        : "memory");
    return;
  }
#endif
  *shared = *global;
}

__device__ inline void copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// At most kPending groups of this thread stay unfinished.
template <int kPending>
__device__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// ---- The copy engine of sm_90 and newer. Code compiled for older devices must not start copies.

#if __CUDA_ARCH__ >= 900
constexpr bool kHasBulkCopies = true;

// Orders this thread's accesses of shared memory before later accesses by the copy engine.
__device__ inline void fence_bulk_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One thread arrives, and announces a number of bytes.
__device__ inline void bulk_barrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void bulk_barrier_arrive(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "waiting: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra waiting; }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// `barrier` waits for the copy. The size and both addresses are multiples of 16.
__device__ inline void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(static_cast<char*>(shared))),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void bulk_store(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(static_cast<const char*>(shared))), "r"(bytes)
               : "memory");
}
// Waits until the shared memory that this thread's stores read may be overwritten.
__device__ inline void wait_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
#else
constexpr bool kHasBulkCopies = false;

__device__ inline void fence_bulk_copies() {}
__device__ inline void wait_bulk_stores() {}
#endif

}  // namespace mgpu::cuda
