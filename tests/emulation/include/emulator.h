// Runs CUDA kernels on a CPU, one block after the other, on one thread of the CPU. The threads of a block are fibers:
// each runs until it waits. They run in a random order, so the
// results of a kernel with a missing barrier may vary.
// MGPU_EMULATED_SEED=1 draws other orders.
//
// It can find
// - wrong results, by the tests;
// - a missing barrier of a block or warp, unless the results do not depend on the order of its threads;
// - blocks that end without a wait for the kernel before theirs, if their launch lets them start before its end;
// - barriers that not all threads reach, and lanes that are not in the mask that they name;
// - reads of results, scratch memory and dynamic shared memory that nothing has written;
// - writes outside of arrays, and to operands;
// - indices outside of an array whose type has its size;
// - with -DMGPU_ASAN=ON, reads outside of arrays, and accesses outside of shared memory.
//
// It does not imitate
// - blocks that run at the same time: those that look back find their predecessors done, so it finds no missing fence;
// - a kernel that starts before its predecessor has ended;
// - the copies of sm_90: the device has compute capability 8.0, and few multiprocessors, so that grids are small;
// - operations by a function, which NVRTC compiles;
// - the last bits of approximate instructions, and the bits of NaNs that arithmetic gives;
// - time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace emulator {

constexpr int kLanes = 32;
constexpr uint64_t kGarbage = 0xa5a5a5a5a5a5a5a5u;  // the contents of memory that nothing has written

int thread();
int threads();
dim3 block();
dim3 grid();
// Dynamic shared memory is filled with garbage before each block.
void* dynamic_shared();

// In wait_for_block and wait_for_lanes, a thread that has ended counts as having arrived, as on a device.
void wait_for_block();
void wait_for_lanes(unsigned mask);
void wait_at(int barrier, int threads);
void arrive_at(int barrier, int threads);
// A kernel that may start before its predecessor's end calls this in each block.
void wait_for_last_kernel();
// A thread that waits for another one in a loop calls this.
void yield();

// Each lane of the mask gives a value, and gets the values of the `live` lanes: those of the mask that have not ended.
struct Votes {
  uint64_t values[kLanes];
  unsigned live;
};
Votes exchange(unsigned mask, uint64_t value);
int count_block(bool vote);

// 32-bit addresses of shared memory.
uint32_t address_of(const void* shared);
void* at_address(uint32_t address);

void run(const std::function<void()>& kernel, dim3 grid, int threads, size_t shared_bytes = 0,
         cudaStream_t stream = nullptr, bool overlaps = false);

extern "C" int64_t mgpu_emulated_launches();  // the number of launches so far

template <typename T>
uint64_t bits_of(const T& value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <typename T>
T value_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
T value_of_lane(unsigned mask, const T& value, int lane) {
  return value_of<T>(exchange(mask, bits_of(value)).values[lane % kLanes]);
}

template <typename T, typename Combine>
T reduce_lanes(unsigned mask, T value, Combine combine) {
  const Votes votes = exchange(mask, bits_of(value));
  for (int lane = 0; lane < kLanes; ++lane) {
    if (votes.live >> lane & 1) value = combine(value, value_of<T>(votes.values[lane]));
  }
  return value;
}

template <typename Predicate>
unsigned lanes_where(unsigned mask, uint64_t value, Predicate predicate) {
  const Votes votes = exchange(mask, value);
  unsigned lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((votes.live >> lane & 1) && predicate(votes.values[lane])) lanes |= 1u << lane;
  }
  return lanes;
}

}  // namespace emulator
