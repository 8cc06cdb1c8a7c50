// Spreads independent tasks over the threads that XLA lends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace mgpu::cpu {

// Where helper tasks run. Nothing is promised of when, or whether, a scheduled task starts.
struct Executor {
  virtual ~Executor() = default;
  virtual int concurrency() const = 0;
  virtual void schedule(std::function<void()> task) = 0;
};

// Runs body(i) for every i in [0, count). The calling thread takes tasks like any helper and can finish all of them
// alone, so it never waits for a helper that has not started; body must not throw and must not wait for another task.
template <typename Body>
void parallel_for(Executor& executor, int64_t count, const Body& body) {
  struct Shared {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> finished{0};
  };
  if (count <= 0) return;
  const int64_t helpers = std::min<int64_t>(executor.concurrency(), count) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  auto shared = std::make_shared<Shared>();
  // A helper that starts late finds no task left and does not touch `body`, which may be gone by then.
  auto work = [shared, count, body = &body] {
    for (int64_t i; (i = shared->next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      (*body)(i);
      if (shared->finished.fetch_add(1, std::memory_order_acq_rel) + 1 == count) shared->finished.notify_all();
    }
  };
  for (int64_t i = 0; i < helpers; ++i) executor.schedule(work);
  work();
  for (int64_t done; (done = shared->finished.load(std::memory_order_acquire)) < count;) shared->finished.wait(done);
}

}  // namespace mgpu::cpu
