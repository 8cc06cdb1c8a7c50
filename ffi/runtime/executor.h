#pragma once

#include <cstdint>
#include <functional>

namespace mgpu::cpu {

// A scheduled task may start at any time, or never.
struct Executor {
  virtual ~Executor() = default;
  virtual int concurrency() const = 0;
  virtual void schedule(std::function<void()> task) = 0;
};

// Calls run(body, i) for every i in [0, count). If calls throw, calls that have not begun are left out, and the first
// exception is thrown on the calling thread once no helper is in the body any more.
void run_tasks(Executor& executor, int64_t count, void (*run)(const void* body, int64_t i), const void* body);

// Runs body(i) for every i in [0, count). The calling thread takes
// tasks too, so it never waits for a helper that has not started.
// The body may throw, but must not wait for another task.
template <typename Body>
void parallel_for(Executor& executor, int64_t count, const Body& body) {
  run_tasks(executor, count, [](const void* body, int64_t i) { (*static_cast<const Body*>(body))(i); }, &body);
}

}  // namespace mgpu::cpu
