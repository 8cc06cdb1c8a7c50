// Between the library and a kernel that it compiles while a program runs, which is a library of its own: plain C, as
// the two may be of different compilers and C++ runtimes.
#pragma once

#include <cstdint>
#include <exception>

#include "function/operator.h"
#include "function/order.h"

namespace mgpu::cpu {

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
  lent.run(
      lent.executor, count, [](const void* context, int64_t i) { (*static_cast<const Body*>(context))(i); }, &body);
}

// Solves a problem, which the library lays out without knowing the function. Gives null, or what went wrong.
using CompiledKernel = const char* (*)(const void* problem, const LentThreads* lent);
constexpr const char* kCompiledKernelName = "jax_mgpu_kernel";

// The kernel as a C function: `Problem` has run(executor). As the library knows it, it is an `AnyProblem`.
template <typename Problem, typename AnyProblem>
const char* run_compiled(const void* problem, const LentThreads* lent) {
  static_assert(sizeof(Problem) == sizeof(AnyProblem));
  try {
    static_cast<const Problem*>(problem)->run(*lent);
    return nullptr;
  } catch (const std::exception&) {
    return "out of memory";
  }
}

}  // namespace mgpu::cpu
