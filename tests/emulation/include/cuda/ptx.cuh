// The functions of ffi/cuda/ptx.cuh without PTX. Kernels include this file instead, because the emulator's include path
// comes first.
#pragma once

#include "algorithm/common.h"
#include "cuda_runtime.h"

namespace mgpu::cuda {

// ---- Values

template <typename... Values>
void keep(Values&...) {}

inline float half_to_float(uint16_t bits) { return static_cast<float>(emulator::value_of<_Float16>(bits)); }
inline uint16_t float_to_half(float x) { return static_cast<uint16_t>(emulator::bits_of(static_cast<_Float16>(x))); }
inline float exp2_approximately(float x) {
  const float power = std::exp2(x);
  return power < 0x1p-126f ? 0 : power;
}
inline float reciprocal_approximately(float x) { return 1 / x; }

inline void start_next_kernel() {}
inline void wait_for_last_kernel() { emulator::wait_for_last_kernel(); }

// ---- Words in device memory that blocks exchange. A thread that waits for a word lets the other threads of its
// block run.

template <typename Word>
void store_relaxed(Word* word, Word value) {
  *word = value;
}
template <typename Word>
void load_relaxed(Word& value, const Word* word) {
  emulator::yield();
  value = *word;
}

// ---- Warps

inline unsigned lanes_of_same_bit(unsigned digit, int bit) {
  const bool is_set = digit & (1u << bit);
  const unsigned lanes = __ballot_sync(~0u, is_set);
  return is_set ? lanes : ~lanes;
}
inline float max_or_nan(float a, float b) { return a != a ? a : b != b ? b : std::fmax(a, b); }
inline unsigned and_of_three(unsigned a, unsigned b, unsigned c) { return a & b & c; }

// ---- Barriers of some of a block's warps

template <int kId, int kThreads>
void barrier_sync() {
  emulator::wait_at(kId, kThreads);
}
template <int kId, int kThreads>
void barrier_arrive() {
  emulator::arrive_at(kId, kThreads);
}
inline void barrier_arrive(int barrier, int threads) {
  __syncwarp();
  emulator::arrive_at(barrier, threads);
}
inline void barrier_sync(int barrier, int threads) {
  __syncwarp();
  emulator::wait_at(barrier, threads);
}

// ---- Shared memory by its 32-bit addresses

template <typename Word>
uint32_t shared_address(const Word* key) {
  return emulator::address_of(key);
}
template <typename Word>
int position_of(uint32_t address, const Word* keys) {
  return static_cast<int>(address - shared_address(keys)) / static_cast<int>(sizeof(Word));
}
template <typename Word>
Word shared_load(uint32_t address) {
  return *static_cast<const Word*>(emulator::at_address(address));
}
template <typename Word>
void shared_store(uint32_t address, Word value) {
  *static_cast<Word*>(emulator::at_address(address)) = value;
}

// ---- Steps of searches and merges in shared memory

template <typename Word>
void load_probes(bool inside, uint32_t a, uint32_t b, Word& a_key, Word& b_key) {
  if (!inside) return;
  a_key = shared_load<Word>(a);
  b_key = shared_load<Word>(b);
}
inline void move_if(bool condition, int bytes, int items, uint32_t& a, uint32_t& b, int& left) {
  if (!condition) return;
  a += bytes;
  b -= bytes;
  left -= items;
}
template <int kBytes>
void move_either(bool in_b, uint32_t& a, uint32_t& b) {
  (in_b ? b : a) += kBytes;
}
template <typename Word>
void advance(bool in_b, uint32_t& a, uint32_t& b, Word& a_key, Word& b_key) {
  const uint32_t next = (in_b ? b : a) + sizeof(Word);
  (in_b ? b : a) = next;
  (in_b ? b_key : a_key) = shared_load<Word>(next);
}
inline void put_or_count(unsigned stores, uint32_t& to, int32_t& value) {
  if (stores) {
    shared_store(to, value);
    to += 4;
  } else {
    ++value;
  }
}
inline void put_match(unsigned is_a, uint32_t& a_to, uint32_t& a_match_to, int32_t& a_before, unsigned is_b,
                      uint32_t& b_to, uint32_t& b_match_to, int32_t& b_before, unsigned match) {
  const auto put = [&](uint32_t& to, uint32_t& match_to, int32_t before) {
    shared_store(to, before);
    shared_store(match_to, static_cast<uint8_t>(match));
    to += 4;
    match_to += 1;
  };
  if (is_a) put(a_to, a_match_to, b_before);
  if (is_b) put(b_to, b_match_to, a_before);
  a_before += is_a ? 1 : 0;
  b_before += is_b ? 1 : 0;
}

// ---- Copies, which are made at once

template <typename T>
void copy_async(T* shared, const T* global) {
  *shared = *global;
}
inline void copy_commit() {}
template <int kPending>
void copy_wait() {}

constexpr bool kHasBulkCopies = false;
inline void fence_bulk_copies() {}
inline void wait_bulk_stores() {}

}  // namespace mgpu::cuda
