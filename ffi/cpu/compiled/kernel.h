// Between the library and a kernel that it compiles while a program runs, which is a library of its own: plain C, as
// the two may be of different compilers and C++ runtimes.
#pragma once

#include <cstdint>
#include <exception>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "function/operator.h"
#include "function/order.h"

namespace mgpu::cpu {

// While it is there, subnormal numbers count, as on a GPU: XLA's threads take them for zeros, so that the least of some
// could be any of them.
class SubnormalsCount {
 public:
  SubnormalsCount() : before_(control()) { set_control(before_ & ~kFlush); }
  ~SubnormalsCount() { set_control(before_); }
  SubnormalsCount(const SubnormalsCount&) = delete;
  SubnormalsCount& operator=(const SubnormalsCount&) = delete;

 private:
#if defined(__SSE__)
  static constexpr uint64_t kFlush = 0x8040;  // of results, of operands
  static uint64_t control() { return _mm_getcsr(); }
  static void set_control(uint64_t word) { _mm_setcsr(static_cast<unsigned>(word)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = (uint64_t{1} << 24) | (uint64_t{1} << 19);  // floats, those of 16 bits
  static uint64_t control() {
    uint64_t word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set_control(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t control() { return 0; }
  static void set_control(uint64_t) {}
#endif

  uint64_t before_;
};

// The threads that the library lends.
struct LentThreads {
  void* executor;
  int threads;
  void (*run)(void* executor, int64_t count, void (*body)(const void* context, int64_t i), const void* context);

  int concurrency() const { return threads; }
};

// Runs body(i) for every i in [0, count), as for any executor.
template <typename Body>
void parallel_for(const LentThreads& lent, int64_t count, const Body& body) {
  if (lent.threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  const auto run = [](const void* context, int64_t i) {
    const SubnormalsCount scope;
    (*static_cast<const Body*>(context))(i);
  };
  lent.run(lent.executor, count, run, &body);
}

// Solves a problem, which the library lays out without knowing the function. Gives null, or what went wrong.
using CompiledKernel = const char* (*)(const void* problem, const LentThreads* lent);
constexpr const char* kCompiledKernelName = "jax_mgpu_kernel";

// The kernel as a C function: `Problem` has run(executor). As the library knows it, it is an `AnyProblem`.
template <typename Problem, typename AnyProblem>
const char* run_compiled(const void* problem, const LentThreads* lent) {
  static_assert(sizeof(Problem) == sizeof(AnyProblem));
  try {
    const SubnormalsCount scope;
    static_cast<const Problem*>(problem)->run(*lent);
    return nullptr;
  } catch (const std::exception&) {
    return "out of memory";
  }
}

}  // namespace mgpu::cpu
