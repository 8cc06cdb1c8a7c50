#include "emulator.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Saves the running fiber's registers on its stack, and its stack pointer in *from. Continues the fiber whose stack
// pointer is `to`.
extern "C" void mgpu_switch_fiber(void** from, void* to);
asm(R"(
.globl mgpu_switch_fiber
.type mgpu_switch_fiber,@function
mgpu_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulator {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / kLanes;
constexpr size_t kStackBytes = 1 << 18;
constexpr size_t kMaxShared = 232448;   // the bytes that an H100 grants a block
constexpr int kMaxIdleRounds = 10'000;  // more mean that the threads wait for something that never happens

struct Fiber {
  void* stack_pointer = nullptr;
  bool is_done = false;
};

struct Barrier {
  int arrived = 0;
  unsigned passed = 0;

  void arrive(int expected);
  // Lets the waiting threads pass if all expected threads have arrived.
  void pass(int expected);
  void wait(int expected);
};

struct Block {
  const std::function<void()>* kernel;
  dim3 grid, index;
  std::vector<Fiber> fibers;
  int live;  // threads that have not ended
  unsigned live_lanes[kMaxWarps];
  void* scheduler = nullptr;
  int current = 0;
  int idle_rounds = 0;  // since a thread last passed a barrier or ended
  const char* failure = nullptr;
  bool has_waited = false;  // for the last kernel
  uint64_t values[kMaxWarps][kLanes];
  bool votes[kMaxThreads];
  Barrier whole;
  Barrier named[16];
  std::map<std::pair<int, unsigned>, Barrier> lanes;  // keyed by warp and mask
};

int64_t launches_ = 0;
Block block_;
alignas(1024) char shared_[kMaxShared];

int warp() { return block_.current / kLanes; }
int lane() { return block_.current % kLanes; }
int live_of(unsigned mask, int warp) { return __builtin_popcount(mask & block_.live_lanes[warp]); }

void Barrier::arrive(int expected) {
  ++arrived;
  pass(expected);
}
void Barrier::pass(int expected) {
  if (arrived == 0 || arrived < expected) return;
  arrived = 0;
  ++passed;
  block_.idle_rounds = 0;
}
void Barrier::wait(int expected) {
  const unsigned before = passed;
  arrive(expected);
  while (passed == before) yield();
}

void run_fiber() {
  (*block_.kernel)();
  block_.fibers[block_.current].is_done = true;
  block_.live_lanes[warp()] &= ~(1u << lane());
  block_.idle_rounds = 0;
  block_.whole.pass(--block_.live);
  for (auto& [key, barrier] : block_.lanes) {
    if (key.first == warp()) barrier.pass(live_of(key.second, key.first));
  }
  yield();
}

// When mgpu_switch_fiber first continues a thread, it pops arbitrary values into registers from the stack, and returns
// to run_fiber.
std::vector<Fiber> new_fibers(int threads) {
  static std::vector<char*> stacks;
  while (static_cast<int>(stacks.size()) < threads) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stacks.push_back(static_cast<char*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0)));
  }
  std::vector<Fiber> fibers(threads);
  for (int i = 0; i < threads; ++i) {
    ASAN_UNPOISON_MEMORY_REGION(stacks[i], kStackBytes);  // a thread that did not end may have left memory poisoned
    void** top = reinterpret_cast<void**>(stacks[i] + kStackBytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(run_fiber);
    fibers[i].stack_pointer = top - 6;
  }
  return fibers;
}

// The order differs from block to block.
std::vector<int> thread_order(int threads) {
  static const char* const seed = std::getenv("MGPU_EMULATED_SEED");
  static std::mt19937 random(seed ? std::atoi(seed) : 0);
  std::vector<int> order(threads);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

void run_block(const std::function<void()>& kernel, dim3 grid, dim3 index, int threads) {
  Block& block = block_;
  block = {&kernel, grid, index, new_fibers(threads), threads};
  for (int i = 0; i < threads; ++i) block.live_lanes[i / kLanes] |= 1u << i % kLanes;
  const std::vector<int> order = thread_order(threads);
  while (block.live > 0) {
    if (++block.idle_rounds > kMaxIdleRounds)
      block.failure = "threads of a block wait for something that never happens";
    for (int i : order) {
      if (block.failure) throw std::runtime_error(std::string("emulator: ") + block.failure);
      if (block.fibers[i].is_done) continue;
      block.current = i;
      mgpu_switch_fiber(&block.scheduler, block.fibers[i].stack_pointer);
    }
  }
}

}  // namespace

int thread() { return block_.current; }
int threads() { return static_cast<int>(block_.fibers.size()); }
dim3 block() { return block_.index; }
dim3 grid() { return block_.grid; }
void* dynamic_shared() { return shared_; }

void wait_for_last_kernel() { block_.has_waited = true; }
void yield() { mgpu_switch_fiber(&block_.fibers[block_.current].stack_pointer, block_.scheduler); }
void wait_for_block() { block_.whole.wait(block_.live); }
void wait_for_lanes(unsigned mask) {
  if (!(mask >> lane() & 1)) {
    block_.failure = "a lane is not in the mask of lanes that it waits for";
    yield();
  }
  block_.lanes[{warp(), mask}].wait(live_of(mask, warp()));
}
void wait_at(int barrier, int threads) { block_.named[barrier].wait(threads); }
void arrive_at(int barrier, int threads) { block_.named[barrier].arrive(threads); }

Votes exchange(unsigned mask, uint64_t value) {
  const int own_warp = warp();
  block_.values[own_warp][lane()] = value;
  wait_for_lanes(mask);
  Votes votes;
  votes.live = mask & block_.live_lanes[own_warp];
  for (int i = 0; i < kLanes; ++i) votes.values[i] = votes.live >> i & 1 ? block_.values[own_warp][i] : kGarbage;
  wait_for_lanes(mask);
  return votes;
}

int count_block(bool vote) {
  block_.votes[block_.current] = vote;
  wait_for_block();
  int count = 0;
  for (int i = 0; i < threads(); ++i) count += !block_.fibers[i].is_done && block_.votes[i];
  wait_for_block();
  return count;
}

// Addresses count from 2 GB before the dynamic shared memory, so that every static variable of this library has one.
uint32_t address_of(const void* shared) {
  return static_cast<uint32_t>(static_cast<const char*>(shared) - shared_ + (int64_t{1} << 31));
}
void* at_address(uint32_t address) { return shared_ - (int64_t{1} << 31) + address; }

void run(const std::function<void()>& kernel, dim3 grid, int threads, size_t shared_bytes, cudaStream_t,
         bool overlaps) {
  if (threads > kMaxThreads || shared_bytes > kMaxShared) throw std::runtime_error("emulator: a block is too large");
  ++launches_;
  ASAN_POISON_MEMORY_REGION(shared_, kMaxShared);
  ASAN_UNPOISON_MEMORY_REGION(shared_, shared_bytes);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        std::memset(shared_, static_cast<int>(kGarbage), shared_bytes);
        run_block(kernel, grid, {x, y, z}, threads);
        if (overlaps && !block_.has_waited)
          throw std::runtime_error("emulator: a block did not wait for the last kernel");
      }
    }
  }
}

int64_t mgpu_emulated_launches() { return launches_; }

}  // namespace emulator
